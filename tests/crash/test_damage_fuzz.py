"""Random damage in any file of a store: every read is exact or refused, never silently less.

The cases are drawn from a seed (`_damages`), done to stores in which everything occurs
(`_damage_worlds`), read in every way in a child process (`_damage_reads`), and judged by what the
same store said before (`_damage_verdict`). It knows of the store only its public API and the format
of its files.

What nobody can know is counted apart. Nothing outside of the files says what they should be, so
files that are whole can be taken for those of another moment:

* the log was cut off or deleted: nothing behind its new end shows that there was more;
* one commit at most lies behind the damage: a power cut leaves the same of the last write;
* the log is an older one, and all of it is in the main file: a kill after a checkpoint leaves this;
* main file and log together are those of an earlier moment, or of another store;
* the main file is gone and no log is left: there is no store here.

Such a store must then equal that other moment in every read. So may one whose log has several whole
commits behind the damage, or is of another main file, if `verify` or `doctor` say so.

A failing case prints the command that replays it: `python -m tests.crash.test_damage_fuzz SEED
NUMBER`, which leaves the files and all that was read in a folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import apsw
import pytest

from tests.crash._damage_verdict import Condition, Judge, Verdict
from tests.crash._damage_worlds import DATABASE, FACTS, WORLDS, World
from tests.crash._damages import LOG, PAGE, Case, case, harm, read_log, restore, source, states
from tests.crash._nursery import ROOT, Nursery
from tests.memory_folders import fast_folder

SEED = 17
SAMPLE = 30
FULL = 500
STEP = 47
_TIMEOUT_S = 60
_REPLAY = "python -m tests.crash.test_damage_fuzz"
_MAKE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.crash._damage_worlds import "
_READ = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.crash._damage_reads import "


class Fuzz:
    """Worlds in a folder, and what they look like undamaged."""

    def __init__(self, folder: Path, nursery: Nursery, *, keep: bool = False) -> None:
        self.folder = folder
        self.keep = keep
        self._nursery = nursery
        self._starting = Lock()
        self._expected: dict[str, dict[str, Any]] = {}
        for world in WORLDS:
            self._make(world)

    def _make(self, world: World) -> None:
        made = self.folder / world.name
        with self._nursery.start(_MAKE + "main; main()", ROOT, world.name, made) as child:
            child.wait()
        assert (made / FACTS).exists()
        facts = self._facts(world, verify_first=True)
        expected = self._examine(made / "files", facts, self.folder / f"{world.name} undamaged")
        assert isinstance(expected, dict), expected
        self._expected[world.name] = expected
        _check_undamaged(expected, facts)

    def _facts(self, world: World, *, verify_first: bool) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / world.name / FACTS).read_text())
        return {**facts, "verify first": verify_first}

    def _examine(self, files: Path, facts: dict[str, Any], folder: Path) -> dict[str, Any] | str:
        """Examine copies of files; return what was found, or how the child ended."""
        folder.mkdir(parents=True)
        (folder / FACTS).write_text(json.dumps(facts))
        for copy in ("store", "again"):
            shutil.copytree(files, folder / copy)
        with self._starting:
            started = self._nursery.start(_READ + "main; main()", ROOT, folder, errors=True)
        with started as child:
            try:
                code = child.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return f"it hung for {_TIMEOUT_S} s"
            assert child.stderr is not None
            printed = child.stderr.read()
        if code:
            return f"it ended with {code}: {printed[-600:]}"
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return found

    def run(self, number: int, seed: int = SEED) -> tuple[Case, Verdict, str]:
        """Run a case; return its verdict, and the state that it was taken for, if it was."""
        drawn = case(seed, number, self.folder)
        folder = self.folder / f"case {seed} {number}"
        folder.mkdir()
        try:
            return self._run(drawn, folder)
        finally:
            if not self.keep:
                shutil.rmtree(folder)

    def _run(self, drawn: Case, folder: Path) -> tuple[Case, Verdict, str]:
        damaged = folder / "damaged"
        harm(drawn, self.folder, damaged)
        facts = self._facts(drawn.world, verify_first=drawn.number % 2 == 0)
        found = self._examine(damaged, facts, folder / "read")
        if isinstance(found, str):
            return drawn, Verdict(wrong={"crash": [found]}), ""
        condition = Condition(
            sound=is_sound(damaged, folder / "sound"),
            hopeless=is_hopeless(damaged),
            broken=is_broken(drawn, damaged),
            mixed=source(drawn, DATABASE) != source(drawn, LOG),
        )
        verdict = Judge(facts, self._expected[drawn.world.name]).judge(found, condition)
        if not verdict.wrong:
            return drawn, verdict, ""
        for state in states(drawn, self.folder, damaged):
            restore(state, folder / "state")
            expected = self._examine(folder / "state", facts, folder / "state read")
            assert isinstance(expected, dict), expected
            if state.files is not None:
                assert not alarms(expected), f"{drawn}: {state} is called damaged"
            other = Judge(facts, expected).judge(found, condition)
            if not other.wrong and (other.reported or not state.told):
                return drawn, other, state.why
        return drawn, verdict, ""


def _check_undamaged(found: dict[str, Any], facts: dict[str, Any]) -> None:
    """An undamaged store shows all that was acknowledged, and nothing is said to be damaged."""
    assert Judge(facts, found).judge(found, Condition()).wrong == {}
    assert not alarms(found)
    for phase in (found["readonly"], found["writable"], found["salvaged"]["read"]):
        for fact in facts["sessions"]:
            view = phase[fact["tenant"]]["value"]["view"]
            shown = view[f"{fact['id']} messages"]["value"]
            assert [[one["id"], one["said"]] for one in shown] == fact["messages"]
        assert all(tenant["value"]["index"] == {"value": []} for tenant in phase.values())
    for fact in facts["sessions"]:
        if fact["tenant"] == "default" and not fact["trashed"]:
            assert "value" in found["writable"]["default"]["value"]["appends"][fact["id"]]


def alarms(found: dict[str, Any]) -> list[object]:
    """Return what is said to be damaged, apart from the index, which may be of another moment."""
    told: list[object] = []
    for phase in (found["readonly"], found["writable"], found["salvaged"]["read"]):
        for tenant in phase.values():
            told += tenant["value"]["damage"]
            told += tenant["value"].get("verify", {"value": []})["value"]
    return told


def is_sound(files: Path, folder: Path) -> bool:
    """True if SQLite finds nothing wrong with the pages of a copy of these files."""
    shutil.copytree(files, folder)
    connection = None
    try:
        connection = apsw.Connection(str(folder / DATABASE))
        return list(connection.execute("PRAGMA integrity_check")) == [("ok",)]
    except apsw.Error:
        return False
    finally:
        if connection is not None:
            connection.close()
        shutil.rmtree(folder)


def is_hopeless(files: Path) -> bool:
    """True if no page with a row is left; the first pages are definitions, `meta` and its index."""
    path, log = files / DATABASE, files / LOG
    logged = log.exists() and log.stat().st_size
    return not path.exists() or path.stat().st_size < (2 if logged else 4) * PAGE


def is_broken(drawn: Case, files: Path) -> bool:
    """True if a log of this world, all of it written at `power`, is damaged inside."""
    log = files / LOG
    own = all(damage.kind.split()[0] not in {"earlier", "other"} for damage in drawn.damages)
    if drawn.world.durability != "power" or not own or not log.exists():
        return False
    return read_log(log.read_bytes()).directly > 1


# ------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def fuzz(nursery: Nursery) -> Iterator[Fuzz]:
    with fast_folder() as folder:
        yield Fuzz(folder, nursery)


def _run(fuzz: Fuzz, numbers: range) -> None:
    """Run cases, as many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        failed = [
            "\n  ".join((str(case), f"replay: {_REPLAY} {SEED} {case.number}", *verdict.lines()))
            for case, verdict, _ in threads.map(fuzz.run, numbers)
            if verdict.wrong
        ]
    assert not failed, "\n".join(failed)


def test_whatever_is_damaged_a_read_is_exact_or_refused(fuzz: Fuzz) -> None:
    """And what is appended to a damaged store is stored, or refused; salvage reports its losses."""
    _run(fuzz, range(SAMPLE))


@pytest.mark.long
@pytest.mark.parametrize("start", range(SAMPLE, FULL, STEP))
def test_whatever_is_damaged_a_read_is_exact_or_refused_for_long(fuzz: Fuzz, start: int) -> None:
    _run(fuzz, range(start, start + STEP))


# ------------------------------------------------------------------------------------- the replay


def main() -> None:
    """Replay cases: SEED and the numbers of cases, or FIRST-LAST; print verdicts and sums."""
    seed, *words = sys.argv[1:]
    numbers: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    where = "/dev/shm" if Path("/dev/shm").exists() else None  # noqa: S108 - syncs cost nothing
    folder = Path(tempfile.mkdtemp(prefix="holdfast-damage-", dir=where))
    nursery = Nursery(None)
    sums: Counter[str] = Counter()
    fuzz = Fuzz(folder, nursery, keep=len(numbers) == 1)
    threads = ThreadPoolExecutor(os.cpu_count())
    for drawn, verdict, why in threads.map(lambda number: fuzz.run(number, int(seed)), numbers):
        outcome = "WRONG" if verdict.wrong else f"taken for: {why}" if why else "right"
        if why:
            outcome += " (reported)" if verdict.reported else " (not reported)"
        sums[outcome] += 1
        sums.update({f"reads {name}": count for name, count in verdict.counts.items()})
        print(f"{drawn}\n  {outcome} {dict(verdict.counts)}", flush=True)  # noqa: T201
        if verdict.only_reported:
            print(f"    only reported: {dict(verdict.only_reported)}")  # noqa: T201
        for line in verdict.lines():
            print(f"    {line}")  # noqa: T201
    print(json.dumps(sums, indent=1), folder if len(numbers) == 1 else "")  # noqa: T201
    if len(numbers) > 1:
        shutil.rmtree(folder)
    nursery.close()
    sys.stdout.flush()
    os._exit(any(name == "WRONG" for name in sums))


if __name__ == "__main__":
    main()
