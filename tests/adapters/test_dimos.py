"""dimos' runs in a store: its interface, and what its files lose."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import File, Message, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.dimos import DimosSessions, Run, current_run
from holdfast.errors import BadMessage
from holdfast.testing.legality import problems
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tools.environments import NotInstalled
from tools.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[2]
BLUEPRINT = "demo-agent"
RUN = "20260503-120000-demo-agent"
LATER = "20260503-130000-demo-agent"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        yield store


@pytest.fixture
def runs(store: Store) -> DimosSessions:
    return DimosSessions(store)


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def human(text: str, **fields: object) -> dict[str, Any]:
    return {"type": "human", "data": {"content": text, "id": None, **fields}}


def ai(text: str | list[Any], **fields: object) -> dict[str, Any]:
    return {"type": "ai", "data": {"content": text, "id": None, "tool_calls": [], **fields}}


def save(
    runs: DimosSessions,
    *history: object,
    run_id: str = RUN,
    parent: str | None = None,
    started_at: str | None = None,
    blueprint: str = BLUEPRINT,
) -> None:
    argv = ["dimos", "run", blueprint]
    runs.save_session(run_id, blueprint, "gpt-4", started_at, argv, list(history), parent)


def contents(runs: DimosSessions, run_id: str = RUN) -> list[Any]:
    return [item["data"]["content"] for item in runs.load_session(run_id)[0]]


HELLO = (human("hello"), ai("hi"))
CALL = {"name": "look", "args": {"at": 1}, "id": "c1", "type": "tool_call"}
EXCHANGE = (
    {"type": "system", "data": {"content": "You are a robot."}},
    human("Where is it?", name="ann"),
    ai(
        "",
        id="run-1",
        tool_calls=[CALL],
        response_metadata={"model_name": "gpt-4o"},
        usage_metadata={
            "input_tokens": 7,
            "output_tokens": 3,
            "total_tokens": 10,
            "input_token_details": {"cache_read": 2},
        },
    ),
    {
        "type": "tool",
        "data": {"content": "No.", "tool_call_id": "c1", "name": "look", "status": "error"},
    },
    ai([{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "?"}]),
)


# --------------------------------------------------------------------------------------- interface


def test_the_functions_have_dimos_parameters() -> None:
    def parameters(name: str) -> list[str]:
        return list(inspect.signature(getattr(DimosSessions, name)).parameters)[1:]

    known = ["run_id", "blueprint", "model", "started_at", "original_argv", "history"]
    assert parameters("save_session") == [*known, "parent_session_id"]
    assert parameters("load_session") == ["run_id"]
    assert parameters("find_latest_session") == ["blueprint"]
    assert parameters("restore_session") == ["blueprint", "restore_session_id", "no_restore"]


def test_a_run_comes_back_as_it_was_saved(runs: DimosSessions) -> None:
    save(runs, *EXCHANGE, started_at="2026-05-03T12:00:00+00:00", parent="20260502-none")
    history, about = runs.load_session(RUN)
    assert history == list(EXCHANGE)
    ended_at = about.pop("ended_at")
    assert isinstance(ended_at, str)
    assert ended_at > "2026-05-03"
    assert about == {
        "run_id": RUN,
        "blueprint": BLUEPRINT,
        "model": "gpt-4",
        "started_at": "2026-05-03T12:00:00+00:00",
        "original_argv": ["dimos", "run", BLUEPRINT],
        "parent_session_id": "20260502-none",
    }


def test_a_missing_run_is_a_missing_file(runs: DimosSessions) -> None:
    for run_id in (RUN, "", "@latest", "not a run"):
        with pytest.raises(FileNotFoundError):
            runs.load_session(run_id)


def test_the_latest_run_of_a_blueprint_is_found(runs: DimosSessions) -> None:
    assert runs.find_latest_session(BLUEPRINT) is None
    assert runs.find_latest_session("") is None
    save(runs, *HELLO)
    save(runs, *HELLO, run_id=LATER)
    save(runs, *HELLO, run_id="20260503-140000-other", blueprint="other")
    assert runs.find_latest_session(BLUEPRINT) == LATER


def test_a_run_is_restored(runs: DimosSessions) -> None:
    assert runs.restore_session(BLUEPRINT, None, False) == ([], None)
    save(runs, *HELLO)
    save(runs, human("later"), run_id=LATER)
    assert runs.restore_session(BLUEPRINT, None, no_restore=False) == ([human("later")], LATER)
    assert runs.restore_session(BLUEPRINT, RUN, no_restore=False) == (list(HELLO), RUN)
    assert runs.restore_session(BLUEPRINT, RUN, no_restore=True) == ([], None)
    assert runs.restore_session("", RUN, no_restore=False) == ([], None)


def test_the_run_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIMOS_RUN_ID", "DIMOS_BLUEPRINT", "DIMOS_STARTED_AT"):
        monkeypatch.delenv(name, raising=False)
    assert current_run() is None
    monkeypatch.setenv("DIMOS_RUN_ID", RUN)
    assert current_run() == Run(RUN, "", None)
    monkeypatch.setenv("DIMOS_BLUEPRINT", BLUEPRINT)
    monkeypatch.setenv("DIMOS_STARTED_AT", "2026-05-03T12:00:00")
    assert current_run() == Run(RUN, BLUEPRINT, "2026-05-03T12:00:00")
    assert current_run({}) is None


def test_what_is_no_message_is_refused(runs: DimosSessions, store: Store) -> None:
    bads: list[dict[str, Any]] = [
        {"type": "human"},
        {"data": {}},
        {"type": 1, "data": {}},
        {"role": "user"},
    ]
    for bad in bads:
        with pytest.raises(BadMessage, match="history"):
            save(runs, bad)
    with pytest.raises(TypeError):
        save(runs, human("x", data=b"x"))
    assert store.stats().sessions == 0


def test_any_message_comes_back(runs: DimosSessions) -> None:
    odd = [
        {"type": "remove", "data": {"content": "", "id": "run-9"}},
        {"type": "chat", "data": {"content": "text", "role": "pilot"}},
        {"type": "tool", "data": {"content": "a result of no call"}},
        {"type": "human", "data": {"content": 7}},
        {"type": "AIMessageChunk", "data": {"content": ["a", {"type": "x"}], "tool_calls": None}},
        ai("", tool_calls=[{"name": "f", "args": {}, "id": None}, {"odd": 1}]),
        human("same id", id="x"),
        ai("same id", id="x"),
        {"type": "human", "data": {}},
    ]
    save(runs, *odd)
    assert runs.load_session(RUN)[0] == odd
    save(runs, *odd, human("more"))
    assert runs.load_session(RUN)[0] == [*odd, human("more")]
    assert runs.find_latest_session(BLUEPRINT) == RUN


# ----------------------------------------------------------------------------------------- history


def test_messages_are_real_messages(runs: DimosSessions, store: Store) -> None:
    save(runs, *EXCHANGE)
    session = store.session(RUN, create=False)
    system, user, call, result, reply = session.messages()
    assert (system.role, system.text) == ("system", "You are a robot.")
    assert (user.role, user.text, user.name) == ("user", "Where is it?", "ann")
    assert (call.id, call.model, call.usage) == ("run-1", "gpt-4o", Usage(7, 3, cache_read=2))
    assert call.tool_calls == (ToolCall("c1", "look", {"at": 1}),)
    assert result.tool_results == (ToolResult("c1", "No.", error=True, name="look"),)
    assert reply.parts[:2] == (Thinking("Hm.", "s"), Text("?"))
    assert problems("openai", session.window().messages) == []
    info = session.info()
    assert (info.scope, info.model, info.preview) == (BLUEPRINT, "gpt-4", "Where is it?")


def test_a_text_is_stored_once(runs: DimosSessions, store: Store) -> None:
    save(runs, human("Kestrel. " * 1_000), ai([{"type": "text", "text": "Otter. " * 1_000}]))
    stored = [msgspec.json.encode(message) for message in store.session(RUN).messages()]
    assert [body.count(b"Kestrel.") + body.count(b"Otter.") for body in stored] == [1_000] * 2


def test_a_save_stores_only_what_is_new(runs: DimosSessions, store: Store) -> None:
    history: list[Any] = []
    for number in range(5):
        history += [human(f"question {number}"), ai(f"answer {number}")]
        save(runs, *history)
        save(runs, *history)
    assert store.stats().messages == 10
    assert len(store.session(RUN).branches()) == 1
    assert contents(runs) == [item["data"]["content"] for item in history]


def test_a_child_shares_its_parents_history(runs: DimosSessions, store: Store) -> None:
    save(runs, *HELLO)
    history, parent = runs.restore_session(BLUEPRINT, None, no_restore=False)
    history.append(human("and now?"))
    save(runs, *history, run_id=LATER, parent=parent)
    history.append(ai("now, too"))
    save(runs, *history, run_id=LATER, parent=parent)
    assert store.stats().messages == 4
    link = store.session(LATER).lineage()[-1]
    assert (link.relation, link.parent, link.seq) == ("continue", store.session(RUN).id, 2)
    assert contents(runs, LATER) == ["hello", "hi", "and now?", "now, too"]
    assert contents(runs) == ["hello", "hi"]
    assert runs.load_session(LATER)[1]["parent_session_id"] == RUN
    assert runs.find_latest_session(BLUEPRINT) == LATER


def test_a_child_that_says_nothing_has_its_parents_history(runs: DimosSessions) -> None:
    save(runs, *HELLO)
    save(runs, *HELLO, run_id=LATER, parent=RUN)
    assert runs.restore_session(BLUEPRINT, LATER, no_restore=False) == (list(HELLO), LATER)


def test_a_child_may_share_a_part_or_nothing(runs: DimosSessions, store: Store) -> None:
    save(runs, *HELLO, human("only the parent's"))
    save(runs, *HELLO, human("the child's"), run_id="part", parent=RUN)
    save(runs, human("new"), run_id="nothing", parent=RUN)
    links = {key: store.session(key).lineage()[-1] for key in ("part", "nothing")}
    assert [(link.relation, link.seq) for link in links.values()] == [("fork", 2), ("reset", 0)]
    assert contents(runs, "part") == ["hello", "hi", "the child's"]
    assert contents(runs, "nothing") == ["new"]
    assert runs.find_latest_session(BLUEPRINT) == "nothing"
    assert store.session("part").info().scope == BLUEPRINT


def test_a_child_of_a_run_that_is_gone_has_its_whole_history(
    runs: DimosSessions, store: Store
) -> None:
    save(runs, *HELLO)
    store.trash(RUN)
    save(runs, *HELLO, human("and now?"), run_id=LATER, parent=RUN)
    assert contents(runs, LATER) == ["hello", "hi", "and now?"]


def test_what_another_program_wrote_is_continued(runs: DimosSessions, store: Store) -> None:
    chat = store.create(scope=BLUEPRINT, title="chat")
    chat.append(
        Message.user(["Look", File(name="a.png", mime="image/png", data=b"\x89PNG")]),
        Message.assistant(
            [Thinking("Hm."), "I look."],
            tool_calls=[ToolCall("a", "look", {"at": 1}), ToolCall("b", "look", "not { JSON")],
        ),
        Message(role="tool", parts=(ToolResult("a", "A"), ToolResult("b", "B", error=True))),
    )
    run_id = runs.find_latest_session(BLUEPRINT)
    assert run_id == chat.id
    chat.update(metadata={"dimos": {"objects": False}})
    history, parent = runs.restore_session(BLUEPRINT, None, no_restore=False)
    assert parent == chat.id
    assert [item["type"] for item in history] == ["human", "ai", "tool", "tool"]
    assert history[1]["data"]["tool_calls"] == [CALL | {"id": "a"}]
    invalid = {"name": "look", "args": "not { JSON", "id": "b", "type": "invalid_tool_call"}
    assert history[1]["data"]["invalid_tool_calls"] == [invalid]
    assert [item["data"]["status"] for item in history[2:]] == ["success", "error"]
    save(runs, *history, ai("Done."), run_id=LATER, parent=parent)
    assert store.stats().messages == 4
    assert store.session(LATER).lineage()[-1].relation == "continue"


def test_an_erased_message_is_not_restored(runs: DimosSessions, store: Store) -> None:
    save(runs, human("secret"), *HELLO)
    store.session(RUN).erase(1)
    history, parent = runs.restore_session(BLUEPRINT, None, no_restore=False)
    assert history == list(HELLO)
    save(runs, *history, human("more"), run_id=LATER, parent=parent)
    assert contents(runs, LATER) == ["hello", "hi", "more"]
    assert store.stats().messages == 4


class Spoken:
    """A message as LangChain's are: an object with a type."""

    type = "human"

    def __init__(self, content: str) -> None:
        self._content = content

    def model_dump(self) -> dict[str, object]:
        return {"content": self._content, "id": None}


def test_objects_are_saved_without_langchain(runs: DimosSessions, store: Store) -> None:
    save(runs, Spoken("hello"), *HELLO)
    assert [message.text for message in store.session(RUN).messages()] == ["hello", "hello", "hi"]


_OBJECTS = """
import sys
import holdfast
from holdfast.adapters.dimos import DimosSessions
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

call = {"name": "look", "args": {"at": 1}, "id": "c1", "type": "tool_call"}
said = [
    SystemMessage("You are a robot."),
    HumanMessage([{"type": "text", "text": "See"},
                  {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}]),
    AIMessage("", tool_calls=[call], id="run-1"),
    ToolMessage("In Oslo.", tool_call_id="c1", name="look"),
    AIMessage("It is in Oslo."),
]
with holdfast.open(sys.argv[1]) as store:
    runs = DimosSessions(store)
    runs.save_session("run", "demo", "gpt-4", None, [], said)
    history, parent = runs.restore_session("demo", None, False)
    assert (history, parent) == (said, "run"), history
    history.append(HumanMessage("Thanks."))
    runs.save_session("child", "demo", "gpt-4", None, [], history, parent)
    assert runs.load_session("child")[0] == history
    assert store.stats().messages == 6
    store.session("child").append(holdfast.Message.assistant(
        "Hm.", tool_calls=[holdfast.ToolCall("c2", "look", {"at": 2})]))
    history, parent = runs.restore_session("demo", None, False)
    assert history[-1].tool_calls == [call | {"args": {"at": 2}, "id": "c2"}], history[-1]
    runs.save_session("third", "demo", "gpt-4", None, [], [*history, HumanMessage("?")], parent)
    assert store.stats().messages == 8
    assert store.session("third").lineage()[-1].relation == "continue"
"""


def test_langchains_objects_come_back(tmp_path: Path) -> None:
    framework = next(each for each in FRAMEWORKS if each.name == "langchain")
    try:
        python = framework.interpreter()
    except NotInstalled as error:
        if not error.unavailable:
            raise
        pytest.skip(str(error))
    run = subprocess.run(
        [str(python), "-c", _OBJECTS, str(tmp_path / "agent.db")],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_without_langchain_objects_cannot_be_loaded(tmp_path: Path) -> None:
    """The error names the extra; a dict needs nothing."""
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "import holdfast\n"
        "from holdfast.adapters.dimos import DimosSessions\n"
        f"store = holdfast.open({str(tmp_path / 'agent.db')!r})\n"
        "store.create(scope='demo').append(holdfast.Message.user('hello'))\n"
        "DimosSessions(store).restore_session('demo', None, False)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: langchain-core is not installed" in run.stderr
    assert "holdfast[langchain]" in run.stderr


# ------------------------------------------------------------------------------------------ losses


def test_two_runs_in_one_second(runs: DimosSessions, store: Store) -> None:
    save(runs, human("first"), started_at="2026-05-03T12:00:00.1")
    save(runs, human("second"), started_at="2026-05-03T12:00:00.2")
    save(runs, human("first"), ai("1"), started_at="2026-05-03T12:00:00.1")
    save(runs, human("second"), ai("2"), started_at="2026-05-03T12:00:00.2")
    assert contents(runs) == ["first", "1"]
    assert runs.find_latest_session(BLUEPRINT) == f"{RUN}~2"
    assert runs.restore_session(BLUEPRINT, None, no_restore=False)[1] == f"{RUN}~2"
    assert contents(runs, f"{RUN}~2") == ["second", "2"]
    assert store.stats().sessions == 2


def test_a_start_time_that_is_known_later_is_no_other_run(runs: DimosSessions) -> None:
    save(runs, human("hello"))
    save(runs, *HELLO, started_at="2026-05-03T12:00:00")
    save(runs, *HELLO, human("more"))
    assert contents(runs) == ["hello", "hi", "more"]


def test_two_runs_in_one_second_of_which_one_begins_as_the_other_is(runs: DimosSessions) -> None:
    save(runs, human("hello"), started_at="2026-05-03T12:00:00.1")
    save(runs, *HELLO, started_at="2026-05-03T12:00:00.2")
    assert contents(runs) == ["hello"]
    assert contents(runs, f"{RUN}~2") == ["hello", "hi"]


def test_two_runs_in_one_second_with_the_same_words(runs: DimosSessions, store: Store) -> None:
    """LangChain's ids are not the same."""
    save(runs, human("hello"), ai("hi", id="run-1"))
    save(runs, human("hello"), ai("hi", id="run-2"))
    assert store.stats().sessions == 2


def test_two_runs_in_one_second_that_begin_alike(runs: DimosSessions) -> None:
    """Without a start time, two runs are told apart by what was said."""
    save(runs, *HELLO)
    save(runs, human("hello"), ai("good day"))
    save(runs, human("hello"), ai("good day"), human("more"))
    assert contents(runs) == ["hello", "hi"]
    assert contents(runs, f"{RUN}~2") == ["hello", "good day", "more"]


def test_the_messages_of_a_second_writer(tmp_path: Path, store: Store) -> None:
    """Both agents of a run save under its id when it ends."""
    runs = DimosSessions(store)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(save, runs, human(f"agent {n}"), ai(f"{n}")) for n in range(4)]
        for future in futures:
            future.result()
    keys = [info.key for info in store.sessions(scope=BLUEPRINT)]
    assert len(keys) == 4
    said = sorted(tuple(contents(runs, key)) for key in keys if key)
    assert said == [(f"agent {n}", f"{n}") for n in range(4)]
    assert (tmp_path / "agent.db").exists()


@pytest.mark.usefixtures("_quick_switches")
def test_the_messages_of_a_second_writer_after_a_shared_beginning(
    runs: DimosSessions, store: Store
) -> None:
    """They append to one session at once: one is first, the others get sessions of their own."""
    together = Barrier(4, timeout=60)

    def write(number: int) -> None:
        for turn in range(20):
            together.wait()
            said = human(f"{number}", id=f"{turn}-{number}" if turn % 2 else None)
            save(runs, human("hello"), said, run_id=f"run {turn}")

    for turn in range(20):
        save(runs, human("hello"), run_id=f"run {turn}")
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write, number) for number in range(4)]:
            future.result()
    for turn in range(20):
        keys = [info.key for info in store.sessions(key_prefix=f"run {turn}~")]
        said = [contents(runs, key) for key in (f"run {turn}", *keys) if key]
        assert sorted(said) == [["hello", f"{number}"] for number in range(4)]


@pytest.mark.usefixtures("_quick_switches")
def test_what_a_parent_says_while_its_child_begins(runs: DimosSessions, store: Store) -> None:
    """It is not in the child, whatever is first."""
    together = Barrier(2, timeout=60)

    def write(history: list[Any], run_id: str, parent: str | None) -> None:
        for turn in range(20):
            together.wait()
            save(runs, *history, run_id=f"{run_id}{turn}", parent=parent and f"{parent}{turn}")

    for turn in range(20):
        save(runs, *HELLO, run_id=f"parent{turn}")
    with ThreadPoolExecutor(2) as pool:
        child = pool.submit(write, [*HELLO, human("child")], "child", "parent")
        parent = pool.submit(write, [*HELLO, human("parent")], "parent", None)
        child.result()
        parent.result()
    for turn in range(20):
        assert contents(runs, f"child{turn}") == ["hello", "hi", "child"]
        assert contents(runs, f"parent{turn}") == ["hello", "hi", "parent"]
        assert store.session(f"child{turn}").lineage()[-1].relation in {"continue", "fork"}


_RUN = """
import sys
import holdfast
from holdfast.adapters.dimos import DimosSessions
with holdfast.open(sys.argv[1], durability="process") as store:
    runs, history = DimosSessions(store), []
    for turn in range(int(1e9)):
        for kind in ("human", "ai"):
            history.append({"type": kind, "data": {"content": f"{kind} {turn}"}})
            runs.save_session("run", "demo", "gpt-4", None, [], history)
        print(turn, flush=True)
"""


def test_a_crash_in_mid_turn(tmp_path: Path, store: Store) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(tmp_path / "agent.db")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    turns = [int(process.stdout.readline()) for _ in range(10)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    history, run_id = DimosSessions(store).restore_session("demo", None, no_restore=False)
    assert run_id == "run"
    said = [item["data"]["content"] for item in history]
    expected = [f"{kind} {n}" for n in range(len(said)) for kind in ("human", "ai")]
    assert said == expected[: len(said)]
    assert len(said) >= 2 * turns + 2


def test_a_corrupt_session(
    runs: DimosSessions, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no history to continue, with a warning; it is not written over."""
    save(runs, *HELLO, run_id=LATER)
    save(runs, human("Kestrel"), ai("hi"))
    store.close()
    with sqlite3.connect(tmp_path / "agent.db") as database:
        assert _damage(database) == 1
    with holdfast.open(tmp_path / "agent.db") as damaged:
        again = DimosSessions(damaged)
        for restored in (RUN, None):
            with caplog.at_level(logging.WARNING, "holdfast"):
                assert again.restore_session(BLUEPRINT, restored, no_restore=False) == ([], None)
            assert "is not restored" in caplog.text
            caplog.clear()
        save(again, human("new"))
        assert contents(again, f"{RUN}~2") == ["new"]
        save(again, human("Kestrel"), ai("hi"), run_id="child", parent=RUN)
        assert contents(again, "child") == ["Kestrel", "hi"]
        nothing = {"type": "system", "data": {"content": ""}}
        save(again, nothing, ai("hi"), run_id="empty", parent=RUN)
        assert contents(again, "empty") == ["", "hi"]
        assert contents(again, LATER) == ["hello", "hi"]
        assert len(damaged.session(RUN).messages()) == 2


def _damage(database: sqlite3.Connection) -> int:
    """Change a byte of the bodies of messages; return how many."""
    changed = 0
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if table == "messages" and "body" in columns:
            changed += database.execute(
                "UPDATE messages SET body = CAST(replace(CAST(body AS TEXT), 'Kestrel', 'Kestrul')"
                " AS BLOB) WHERE CAST(body AS TEXT) LIKE '%Kestrel%'"
            ).rowcount
    return changed


@pytest.mark.parametrize("text", [os.fsdecode(b"caf\xe9"), "\x00", "\ud83d", "\u2028"], ids=ascii)
def test_a_non_utf8_byte(runs: DimosSessions, text: str) -> None:
    run_id = f"{RUN}{text}"
    save(runs, human(text), run_id=run_id, blueprint=text)
    assert runs.restore_session(text, None, no_restore=False) == ([human(text)], run_id)


@pytest.mark.parametrize(
    ("one", "two"),
    [("a:b", "a_b"), ("a/b", "a_b"), ("A", "a"), ("../a", "a"), ("k" * 4000 + "1", "k" * 4000)],
    ids=lambda key: str(key)[:6],
)
def test_one_of_two_colliding_blueprints(runs: DimosSessions, one: str, two: str) -> None:
    for name in (one, two):
        save(runs, human(name), run_id=f"20260503-120000-{name}", blueprint=name)
    for name in (one, two):
        expected = ([human(name)], f"20260503-120000-{name}")
        assert runs.restore_session(name, None, no_restore=False) == expected


def test_a_message_after_an_erased_one_that_says_what_the_last_one_said(
    runs: DimosSessions, store: Store
) -> None:
    save(runs, human("one"), human("two"), human("again"))
    session = store.session(RUN)
    session.erase(session.messages()[0].id)
    history, _ = runs.load_session(RUN)
    save(runs, *history, human("again"))
    assert contents(runs) == ["two", "again", "again"]
    assert len(store.sessions().items) == 1


def test_an_image_that_another_program_stored(runs: DimosSessions, store: Store) -> None:
    save(runs, human("hello"))
    store.session(RUN).append(Message.user([Text("See"), File(mime="image/png", data=b"\x89PNG")]))
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    assert contents(runs)[1] == [{"type": "text", "text": "See"}, shown]


def test_a_run_with_calls_of_no_known_form(runs: DimosSessions) -> None:
    history = [human("hello"), ai("hi", tool_calls=["look"]), ai("hi", tool_calls="look")]
    for number in range(1, 4):
        save(runs, *history[:number])
    assert runs.load_session(RUN)[0] == history


def test_the_half_reply_of_a_crashed_turn_of_another_program(tmp_path: Path) -> None:
    crash_in_a_reply(tmp_path / "other.db", RUN)
    with holdfast.open(tmp_path / "other.db", durability="process") as store:
        history = [human("And now?")]
        DimosSessions(store).save_session(LATER, BLUEPRINT, "m", None, [], history, RUN)
        assert [message.text for message in store.session(RUN).messages()] == [ASKED, HALF]
