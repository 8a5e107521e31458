"""Purge erases: no byte of what was purged is left in any file of the store.

Every text of a session carries that session's canary. Sessions of all kinds are written in turns,
in sizes that make pages split and rows move from page to page, because that is how engines come to
leave copies behind. Then some are purged, and every file in the store's folder is searched.

Files are read after the store is closed: reading a database by other means while it is open would
drop its locks.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import File, Goal, Message, Record, ToolCall
from holdfast.storage.sqlite import backend, wipe
from holdfast.storage.sqlite.repair.salvage import salvage

PAGE = 4096
SIZES = ([1, 5], [20, 90], [1, 20, 90, 150], [90, 300, 900], [1, 5, 20, 90, 300, 900, 8000])


def canary(number: int) -> str:
    return f"canary{number:04}x"


class Flock:
    """Sessions, each with a canary in all that is said of it and in it."""

    def __init__(self, store: holdfast.Store, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.sizes = chance.choice(SIZES)
        self.sessions: dict[int, holdfast.Session] = {}
        self.purged: set[int] = set()
        self._count = 0
        self._deeds: list[Callable[[int], object]] = [
            *[self.append] * 8,
            self.turn,
            self.enqueue,
            self.file,
            *[self.record] * 3,
            self.update,
            self.replace,
            self.add,
        ]

    def cry(self, number: int, times: int | None = None) -> str:
        """A text full of a session's canary."""
        count = self.chance.choice(self.sizes) if times is None else times
        return " ".join([canary(number)] * count)

    def add(self, _: int = 0, *, inherited: bool = True) -> None:
        """Make a session; what forks would inherit of it has its canary only if wanted."""
        self._count += 1
        name = self._count
        self.sessions[name] = self.store.create(
            key=self.cry(name, self.chance.randint(1, 9)),
            title=self.cry(name, self.chance.randint(1, 9)),
            scope=self.cry(name, 1) if inherited else None,
            agent=self.cry(name, 1) if inherited else None,
            cwd=self.cry(name, self.chance.randint(1, 30)) if inherited else None,
            metadata={self.cry(name, 1): self.cry(name, self.chance.randint(1, 30))},
        )

    def append(self, number: int) -> None:
        many = [Message.user(self.cry(number)) for _ in range(self.chance.randint(1, 4))]
        self.sessions[number].append(*many)

    def turn(self, number: int) -> None:
        call = ToolCall(self.cry(number, 2), self.cry(number, 1), {"a": self.cry(number)})
        with self.sessions[number].turn(run_id=f"{self.cry(number, 3)} {time.time_ns()}") as turn:
            turn.user(self.cry(number))
            turn.assistant(self.cry(number), tool_calls=[call])
            turn.tool(call.id, self.cry(number))
            with turn.stream(model=self.cry(number, 1)) as draft:
                draft.write(self.cry(number))

    def enqueue(self, number: int) -> None:
        data = self.cry(number).encode()
        self.sessions[number].enqueue([File(name="q", mime="text/plain", data=data)])
        self.sessions[number].enqueue(self.cry(number))

    def file(self, number: int) -> None:
        data = f"{self.cry(number)} {self.chance.random()}".encode()
        self.sessions[number].append(
            Message.user([File(name=self.cry(number, 1), mime="text/plain", data=data)])
        )

    def record(self, number: int) -> None:
        file = f"{self.cry(number)} {self.chance.random()}".encode()
        self.sessions[number].append(
            Record(self.cry(number, 1), data=self.cry(number), files={"f": File(data=file)}),
            Record("state", key=self.cry(number, 2), data={self.cry(number, 1): self.cry(number)}),
        )

    def update(self, number: int) -> None:
        self.sessions[number].update(
            title=self.cry(number, self.chance.randint(1, 40)),
            metadata={"x": self.cry(number, self.chance.randint(1, 40))},
            goal=Goal(self.cry(number, 5)),
        )

    def replace(self, number: int) -> None:
        self.sessions[number].replace([Message.user(self.cry(number))])

    def live(self, steps: int) -> None:
        """Let many things happen, in all sessions in turns."""
        for _ in range(steps):
            self.chance.choice(self._deeds)(self.chance.choice(list(self.sessions)))

    def purge(self, number: int) -> holdfast.values.PurgeReport:
        self.purged.add(number)
        return self.store.purge(self.sessions.pop(number).id)

    def told(self, number: int) -> tuple[object, ...]:
        session = self.sessions[number]
        return session.info(), session.messages(), session.turns(), session.queued()


def _left(folder: Path, numbers: set[int]) -> dict[str, set[int]]:
    """Which canaries are found in which file."""
    found = {}
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        there = {number for number in numbers if canary(number).encode() in data}
        if there:
            found[path.name] = there
    return found


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 10))]
)
def test_purge_leaves_no_byte_and_takes_none_of_others(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        flock = Flock(store, chance)
        for _ in range(chance.choice([6, 30, 60])):
            flock.add()
        for _ in range(3):
            flock.live(100)
            for number in chance.sample(list(flock.sessions), k=len(flock.sessions) // 3):
                before = {n: flock.told(n) for n in chance.sample(list(flock.sessions), k=2)}
                report = flock.purge(number)
                assert report.pending == ()
                assert {n: flock.told(n) for n in before if n != number} == {
                    n: facts for n, facts in before.items() if n != number
                }
        assert store.verify() == []
        kept = {number: flock.told(number) for number in flock.sessions}
        flock.live(40)  # Further writes do not bring it back from a page cache.
    assert _left(tmp_path, flock.purged) == {}
    assert _left(tmp_path, set(kept))["a.db"] == set(kept)


@pytest.mark.parametrize("size", [20, 900, 9000])
def test_no_byte_of_a_dropped_or_purged_record_is_left(tmp_path: Path, size: int) -> None:
    """Neither in the file nor in its log; of those that stay, all is left."""
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        session = store.session("the session")
        for number in range(1, 40):
            text = " ".join([canary(number)] * (size + number))
            session.append(
                Message.user("word"),
                Record(canary(number), key=canary(number), data=text),
                Record("state", data=text, files={"f": File(data=text.encode())}),
            )
        for number in range(1, 40, 2):
            assert session.drop(kind=canary(number)).records == 1
        report = session.drop(kind="state", keep=20)
        assert (report.records, report.kept, report.pending) == (19, 0, ())
        kept = {number for number in range(1, 40) if number % 2 == 0 or number >= 20}
        assert store.verify() == []
    assert _left(tmp_path, set(range(1, 40))) == {"a.db": kept}
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        purged = store.purge("the session")
        assert (purged.records, purged.pending) == (20 + 19, ())
        assert purged.scan is not None
        assert purged.scan.clean
    assert _left(tmp_path, set(range(1, 40))) == {}


def test_without_wiping_gaps_bytes_would_stay(tmp_path: Path) -> None:
    """The test above can fail: SQLite's own overwriting leaves copies in gaps of pages."""
    path = tmp_path / "a.db"
    chance = random.Random(3)
    with holdfast.open(path, durability="process") as store:
        flock = Flock(store, chance)
        for _ in range(30):
            flock.add()
        flock.live(400)
    data = path.read_bytes()
    assert any(b"canary" in _gap(data[at : at + PAGE]) for at in range(PAGE, len(data), PAGE))


def _gap(page: bytes) -> bytes:
    """The unused middle of a leaf, between the list of its cells and the first of these."""
    cells, content = (int.from_bytes(page[at : at + 2], "big") for at in (3, 5))
    return page[8 + 2 * cells : content] if page[0] in (10, 13) else b""


def test_a_trashed_session_is_purged_like_any_other(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        flock = Flock(store, random.Random(1))
        flock.add()
        flock.add()
        flock.live(30)
        store.trash(flock.sessions[1].id)
        assert flock.purge(1).pending == ()
    assert _left(tmp_path, {1}) == {}
    assert _left(tmp_path, {2}) == {"a.db": {2}}


_DYING = """
import apsw, os, sys, time, holdfast
path, text = sys.argv[1:]
with holdfast.open(path).session("s").turn() as turn:
    turn.user(text)
    with turn.stream() as draft:
        for n in range(50):
            draft.write(text * 200)
        reader = apsw.Connection(path)
        while reader.execute("SELECT count(*) FROM drafts").get < 2:
            time.sleep(0.01)
        os._exit(9)
"""


def test_a_recovered_draft_and_an_open_one_go_too(tmp_path: Path) -> None:
    """Both the text that was flushed and what recovery made of it."""
    folder = tmp_path / "store"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _DYING, str(folder / "a.db"), canary(1)], check=False
    )
    assert done.returncode == 9
    with holdfast.open(folder / "a.db") as store:
        assert store.get("s").interrupted
        report = store.purge("s")
        assert (report.turns, report.pending) == (1, ())
    assert _left(tmp_path, {1}) == {}


def test_what_forks_share_stays_and_goes_with_the_last_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        flock = Flock(store, random.Random(2))
        flock.add(inherited=False)
        root = flock.sessions[1]
        root.append(*(Message.user(f"{canary(7)} {n} " + "x" * 300) for n in range(30)))
        root.append(*(Message.user(f"{canary(8)} {n} " + "x" * 300) for n in range(30)))
        fork, other = root.fork(30), root.fork(10)
        assert flock.purge(1).kept == 30
        texts = [message.text for message in fork.messages()]
        other_id = other.id
    assert _left(tmp_path, {1, 8}) == {}, "its names, and what no fork shares"
    assert _left(tmp_path, {7}) == {"a.db": {7}}
    assert len(texts) == 30
    with holdfast.open(path) as store:
        store.purge(fork.id)
        assert [m.text for m in store.get(other_id).messages()] == texts[:10]
        store.purge(other_id)
        assert store.verify() == []
    assert _left(tmp_path, {1, 7, 8}) == {}


def test_erased_in_forks_too_nothing_is_left(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        flock = Flock(store, random.Random(2))
        flock.add(inherited=False)
        flock.live(60)
        root = flock.sessions[1]
        forks = [root.fork(title="fork"), root.fork(2, title="fork")]
        for fork in forks:
            fork.append(Message.user("of its own " + canary(9)))
        report = store.purge(root.id, forks="erase")
        assert set(report.erased_in) == {fork.id for fork in forks}
        for fork in forks:
            assert [m.text for m in fork.messages()][-1] == "of its own " + canary(9)
            assert {m.status for m in fork.messages()[:-1]} == {"erased"}
        assert store.verify() == []
    assert _left(tmp_path, {1}) == {}
    assert _left(tmp_path, {9}) == {"a.db": {9}}


def test_a_reader_in_the_way_is_told_and_the_next_purge_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setattr(backend, "_WIPE_BUSY_TIMEOUT_MS", 100)
    with holdfast.open(path) as store:
        flock = Flock(store, random.Random(4))
        for _ in range(3):
            flock.add()
        flock.live(60)
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN; SELECT count(*) FROM messages").fetchall()
        monkeypatch.setattr(wipe, "_dirty_pages", lambda *_: pytest.fail("the log is not empty"))
        (said,) = flock.purge(1).pending
        assert "write-ahead log" in said
        reader.close()
        monkeypatch.undo()
        assert flock.purge(2).pending == ()
    assert _left(tmp_path, {1, 2}) == {}


_NEIGHBOUR = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    for ready in (True, False):
        for info in store.sessions(limit=100):
            session = store.get(info.id)
            session.messages()
            session.append(holdfast.Message.user("y" * 50))
        if ready:
            print("ready", flush=True)
            sys.stdin.readline()
"""


def test_who_has_pages_in_memory_does_not_write_them_back(tmp_path: Path) -> None:
    """Another process reads and writes before the purge, and writes to the same pages after it."""
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        flock = Flock(store, random.Random(6))
        for _ in range(30):
            flock.add()
        flock.live(200)
        neighbour = subprocess.Popen(
            [sys.executable, "-c", _NEIGHBOUR, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "ready\n"
        for number in range(1, 16):
            assert flock.purge(number).pending == ()
        neighbour.communicate("go\n")
        assert neighbour.returncode == 0
        assert store.verify() == []
    assert _left(tmp_path, flock.purged) == {}
    assert _left(tmp_path, set(range(16, 31))) == {"a.db": set(range(16, 31))}


def test_while_others_write_a_purge_leaves_nothing_or_says_so(tmp_path: Path) -> None:
    path, stop = tmp_path / "a.db", threading.Event()
    with holdfast.open(path, durability="process") as store:
        flock = Flock(store, random.Random(8))
        for _ in range(12):
            flock.add()
        flock.live(150)
        busy = store.create()

        def write() -> None:
            while not stop.is_set():
                busy.append(Message.user("z" * 100))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            pending = [flock.purge(number).pending for number in range(1, 5)]
        finally:
            stop.set()
            thread.join()
        assert all("other connections" in said for some in pending for said in some)
        assert flock.purge(5).pending == ()
        assert store.verify() == []
        assert busy.messages()[-1].text == "z" * 100
    assert _left(tmp_path, {1, 2, 3, 4, 5}) == {}


def test_a_salvaged_store_forgets_as_well_and_says_what_lies_aside(tmp_path: Path) -> None:
    path, folder = tmp_path / "a.db", tmp_path / "salvaged"
    folder.mkdir()
    with holdfast.open(path) as store:
        flock = Flock(store, random.Random(5))
        flock.add()
        flock.add()
        flock.live(60)
        names = {number: session.id for number, session in flock.sessions.items()}
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE sessions SET goal = '{]' WHERE n = 2")
    connection.close()
    salvage(path, folder / "b.db")
    with holdfast.open(folder / "b.db") as store:
        (said,) = store.purge(names[1]).pending
        assert "quarantine" in said
    assert _left(folder, {1}) == {}
