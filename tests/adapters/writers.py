"""Four processes write to one session through a framework, into its own store or ours.

They write in rounds, which all of them begin at once and the next of which begins when all have
ended: so each has what the others wrote to take into account, however fast the machine is.

A message is *lost* if its turn was acknowledged and it is not in the history, *doubled* if it is
there twice, *reordered* if one that its writer stored later comes before it, *unknown* if it is
nothing that was given. A turn is *torn* if only some of its messages are there or, where the
framework takes it in one call, if something is between them.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

import holdfast
from holdfast.testing.legality import PROVIDERS, problems
from tests.adapters.environment import surroundings
from tests.adapters.programs.turns import MESSAGES, Mark
from tools.frameworks import FRAMEWORKS

WRITERS: Final = 4
TURNS_A_ROUND: Final = 5
_ROUNDS: Final = 5
_PROGRAM: Final = "tests.adapters.programs.writer"
_HEAD: Final = ("| framework | with its own store | with Holdfast |", "|---|---|---|")


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """What a framework's writers call, the store that it has itself, and what one call stores."""

    framework: str
    own: str | None
    whole_turns: bool


INTERFACES: Final = (
    Interface(framework="openai_agents", own="SQLiteSession", whole_turns=True),
    Interface(framework="langgraph", own="SqliteSaver", whole_turns=False),
    Interface(framework="langchain", own=None, whole_turns=True),
    Interface(framework="claude_agent_sdk", own=None, whole_turns=True),
    Interface(framework="pydantic_ai", own=None, whole_turns=True),
    Interface(framework="google_adk", own="SqliteSessionService", whole_turns=False),
    Interface(framework="strands", own="FileSessionManager", whole_turns=False),
    Interface(framework="nanobot", own="SessionManager", whole_turns=True),
    Interface(framework="hermes", own="SessionDB", whole_turns=False),
    Interface(framework="praisonai", own="DefaultSessionStore", whole_turns=False),
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a history."""

    lost: int
    doubled: int
    reordered: int
    torn: int
    unknown: int

    @property
    def flawless(self) -> bool:
        """True if nothing is wrong."""
        return not any(msgspec.structs.astuple(self))

    def __str__(self) -> str:
        """Return the counts that are not 0."""
        counts = msgspec.structs.asdict(self)
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the writers were told, and what the history is like."""

    messages: int
    retries: int
    refused: dict[str, int]
    verdict: Verdict

    @property
    def flawless(self) -> bool:
        """True if all turns were stored, and nothing is wrong."""
        return self.verdict.flawless and not self.refused

    def __str__(self) -> str:
        """Return the report as a cell of the table."""
        refused = [f"{count} turns refused ({name})" for name, count in self.refused.items()]
        wrong = "each once, in order" if self.verdict.flawless else str(self.verdict)
        found = [f"{self.messages} messages: {wrong}", *refused]
        if self.retries:
            found.append(f"{self.retries} retries")
        return "; ".join(found)


def judge(
    acknowledged: Iterable[tuple[str, int]], history: Sequence[Mark | None], *, whole_turns: bool
) -> Verdict:
    """Compare the turns that were acknowledged, each a writer and a number, with a history."""
    marks = [mark for mark in history if mark is not None]
    places: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for place, mark in enumerate(history):
        if mark is not None:
            places[mark.writer, mark.number].setdefault(mark.message, place)
    first = list(dict.fromkeys(marks))
    torn = [
        found for found in places.values() if not _is_whole(found.values(), adjacent=whole_turns)
    ]
    return Verdict(
        lost=sum(MESSAGES - len(places.get(turn, ())) for turn in acknowledged),
        doubled=len(marks) - len(first),
        reordered=sum(map(_reordered, _by_writer(first))),
        torn=len(torn),
        unknown=len(history) - len(marks),
    )


def _is_whole(places: Iterable[int], *, adjacent: bool) -> bool:
    found = sorted(places)
    return len(found) == MESSAGES and (not adjacent or found[-1] - found[0] == MESSAGES - 1)


def _by_writer(marks: Iterable[Mark]) -> Iterable[list[Mark]]:
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        found[mark.writer].append(mark)
    return found.values()


def _reordered(marks: Sequence[Mark]) -> int:
    """Return how many messages come behind one that their writer stored later."""
    newest, count = marks[0], 0
    for mark in marks:
        count += mark < newest
        newest = max(newest, mark)
    return count


def run_writers(python: Path, interface: Interface, kind: str, folder: Path, rounds: int) -> Report:
    """Let the processes write at once, to `own` store or to `holdfast`, and read what is there."""
    folder.mkdir()
    process = _Processes(python, interface.framework, kind, folder)
    if kind == "own":  # Some cannot stand that several processes create a session at once.
        process.read()
    with ExitStack() as stack:
        writers = [stack.enter_context(process.start(f"w{number}")) for number in range(WRITERS)]
        process.wait_for("ready", writers)
        for _ in range(rounds):
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write(f"{TURNS_A_ROUND}\n")
                writer.stdin.flush()
            process.wait_for("done", writers)
        answers = [process.answer(writer) for writer in writers]
    acknowledged = [
        (f"w{number}", turn) for number, answer in enumerate(answers) for turn in answer["stored"]
    ]
    history = [None if mark is None else Mark(*mark) for mark in process.read()]
    return Report(
        messages=MESSAGES * len(acknowledged),
        retries=sum(answer["retries"] for answer in answers),
        refused=sum((Counter(answer["refused"]) for answer in answers), Counter()),
        verdict=judge(acknowledged, history, whole_turns=interface.whole_turns),
    )


class _Processes:
    """The processes of writers and readers of a store in a folder."""

    def __init__(self, python: Path, framework: str, kind: str, folder: Path) -> None:
        self._command = [str(python), "-m", _PROGRAM, framework, kind, str(folder)]
        self._folder = folder
        self._log = folder / "stderr"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._folder,
                env=surroundings(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def read(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the marks of all messages, as a new process reads them."""
        with self.start() as reader:
            return self.answer(reader)

    def wait_for(self, word: str, processes: Iterable[subprocess.Popen[str]]) -> None:
        """Wait until each of them has said a word; one that ended instead fails."""
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != f"{word}\n":
                self.answer(process)

    def answer(self, process: subprocess.Popen[str]) -> Any:  # noqa: ANN401 - any JSON
        printed, _ = process.communicate()
        assert process.returncode == 0, self._log.read_text(errors="replace")[-5_000:]
        return json.loads(printed)


def store_problems(path: Path) -> list[str]:
    """Return what is wrong with the sessions of a store, and what a provider would refuse."""
    with holdfast.open(path) as store:
        found = [str(damage) for damage in store.verify()]
        for info in store.sessions():
            found += _session_problems(store.get(info.id))
    return found


def _session_problems(session: holdfast.Session) -> list[str]:
    messages = session.messages()
    ids = Counter(message.id for message in messages)
    found = [f"{id} is stored {count} times" for id, count in ids.items() if count > 1]
    if [message.seq for message in messages] != list(range(1, len(messages) + 1)):
        found.append("the seqs have a gap")
    for provider in PROVIDERS:
        window = session.window(provider=provider)
        found += problems(provider, window.messages, window.system)
    return found


def rows(names: Sequence[str] = (), rounds: int = _ROUNDS) -> list[str]:
    """Return the table of all frameworks, or of those with these names.

    Raise `NotInstalled`, and `AssertionError` with the row if anything is wrong with our store.
    """
    wanted = [one for one in INTERFACES if not names or one.framework in names]
    return [*_HEAD, *(_row(interface, rounds) for interface in wanted)]


def _row(interface: Interface, rounds: int) -> str:
    framework = next(one for one in FRAMEWORKS if one.name == interface.framework)
    python = framework.interpreter()
    own = "it has none that is stored"
    with tempfile.TemporaryDirectory(prefix="holdfast-writers-") as name:
        folder = Path(name)
        if interface.own is not None:
            report = run_writers(python, interface, "own", folder / "own", rounds)
            own = f"`{interface.own}`: {report}"
        ours = run_writers(python, interface, "holdfast", folder / "holdfast", rounds)
        wrong = store_problems(folder / "holdfast" / "agent.db")
    package = framework.packages[0].replace("==", " ")
    row = f"| {package} | {own} | {'; '.join([str(ours), *wrong])} |"
    assert ours.flawless, row
    assert not wrong, row
    return row
