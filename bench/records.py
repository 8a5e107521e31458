"""Records: state that a framework keeps beside the messages, against the bare engine.

The bare engine has one table with an index over kind and key, which it needs to find the newest;
its bytes are encoded already, and what it reads is decoded by the same decoder. It has no ids, no
checksums, no branches and no head.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import apsw
import msgspec

import holdfast
from bench import bare
from bench.measure import TIMES, Result, Times, alternate, median, micros, millis, ratio, timed
from bench.plan import Plan
from holdfast import File, Message, Record, Session
from holdfast.url import Durability
from holdfast.values import JSON

_DURABILITIES: Final[tuple[Durability, ...]] = ("power", "process")
_BAR: Final = 1.5
_ROUND: Final = 20
_KIND: Final = "checkpoint"
_KEY: Final = "thread"
_TURNS: Final = 200
_PIECES: Final = 20
_PIECE_BYTES: Final = 4_000

_TABLE: Final = "CREATE TABLE states (n INTEGER PRIMARY KEY, kind TEXT, key TEXT, body TEXT)"
_INDEX: Final = "CREATE INDEX states_by_key ON states (kind, key)"
_ADD: Final = "INSERT INTO states (kind, key, body) VALUES (?, ?, ?)"
_NEWEST: Final = "SELECT body FROM states WHERE kind = ? AND key = ? ORDER BY n DESC LIMIT 1"


def checkpoint(number: int) -> JSON:
    """Return a state of about 20 KB: some channels, and the messages of the last steps."""
    said: list[JSON] = [
        {"type": "human" if n % 2 else "ai", "id": f"m{number + n}", "content": "parcel " * 135}
        for n in range(20)
    ]
    versions: JSON = {f"channel-{n}": number + n for n in range(20)}
    return {"v": 4, "step": number, "channel_values": {"messages": said}, "versions": versions}


def records(plan: Plan) -> Iterator[Result]:
    """Put states of 20 KB, read the newest, drop all but one; the bytes of states that repeat."""
    for durability in _DURABILITIES:
        yield from _beside_bare(plan, durability)
    yield _repeated(plan)


def _beside_bare(plan: Plan, durability: Durability) -> Iterator[Result]:
    path, total = plan.path("records"), plan.sizes.checkpoints
    connection = bare.connect(plan.path("bare-records"), durability)
    connection.execute(f"{_TABLE}; {_INDEX}")
    rounds = total // _ROUND
    with holdfast.open(path, durability=durability) as store:
        session = store.session("bench")
        session.append(Message.user("hello"))
        ours, theirs = alternate(rounds, _puts(session), _bare_puts(connection))
        what = f"put of {total:,} states of 20 KB, {durability}"
        yield _result(what, ours, theirs)
        if durability == "process":
            ours, theirs = alternate(30, _reads(session), _bare_reads(connection))
            yield _result(f"newest of {total:,} states, decoded", ours, theirs)
            yield _dropped(session, connection, total)
    connection.close()


def _result(what: str, ours: list[Times], theirs: list[Times]) -> Result:
    found = ratio(ours, theirs)
    return Result(
        name="records",
        what=what,
        value=median(ours),
        figure=f"{micros(median(ours))} (bare {micros(median(theirs))})",
        ratio=found,
        bar=f"≤ {_BAR} {TIMES} bare",
        met=found <= _BAR,
    )


def _puts(session: Session) -> Callable[[], Times]:
    numbers = count()

    def run() -> Times:
        times = []
        for _ in range(_ROUND):
            record = Record(_KIND, key=_KEY, data=checkpoint(next(numbers)))
            started = time.perf_counter()
            session.append(record)
            times.append(time.perf_counter() - started)
        return times

    return run


def _bare_puts(connection: apsw.Connection) -> Callable[[], Times]:
    numbers = count()

    def run() -> Times:
        times = []
        for _ in range(_ROUND):
            body = msgspec.json.encode(checkpoint(next(numbers))).decode()
            started = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_ADD, (_KIND, _KEY, body))
            connection.execute("COMMIT")
            times.append(time.perf_counter() - started)
        return times

    return run


def _reads(session: Session) -> Callable[[], Times]:
    return lambda: [timed(lambda: session.record(_KIND, _KEY)) for _ in range(_ROUND)]


def _bare_reads(connection: apsw.Connection) -> Callable[[], Times]:
    def read() -> object:
        return msgspec.json.decode(connection.execute(_NEWEST, (_KIND, _KEY)).get)

    return lambda: [timed(read) for _ in range(_ROUND)]


def _dropped(session: Session, connection: apsw.Connection, total: int) -> Result:
    """Drop all states but the newest, with their bytes."""

    def delete() -> None:
        connection.execute("PRAGMA secure_delete=ON").fetchall()
        connection.execute("DELETE FROM states WHERE n < (SELECT max(n) FROM states)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    ours = timed(lambda: session.drop(kind=_KIND, keep=1))
    theirs = timed(delete)
    assert session.record(_KIND, _KEY) is not None
    return Result(
        name="records",
        what=f"drop of {total - 1:,} of {total:,} states, with their bytes",
        value=ours,
        figure=f"{millis(ours)} (bare {millis(theirs)})",
        ratio=ours / theirs,
    )


def _repeated(plan: Plan) -> Result:
    """Store the state after each of 200 turns, as files of which one in twenty changes."""
    path, chance = plan.path("repeated"), random.Random(1)
    pieces = [chance.randbytes(_PIECE_BYTES) for _ in range(_PIECES)]
    with holdfast.open(path, durability="process") as store:
        session = store.session("bench")
        for turn in range(_TURNS):
            pieces[turn % _PIECES] = chance.randbytes(_PIECE_BYTES)
            files = {f"piece {n}": File(data=data) for n, data in enumerate(pieces)}
            session.append(Message.user(f"turn {turn}"), Record(_KIND, key=_KEY, files=files))
    stored, given = _size(path), _TURNS * _PIECES * _PIECE_BYTES
    return Result(
        name="records",
        what=f"bytes after {_TURNS} turns, a state of {_PIECES} files, one new each time",
        value=stored,
        figure=f"{stored / 1e6:.1f} MB (states as they are: {given / 1e6:.1f} MB)",
        ratio=stored / given,
        of="as they are",
    )


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
