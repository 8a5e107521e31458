"""Stores that nobody's program wrote: rows whose checksums are right and whose content cannot be.

`CASES` has a change by SQL for each way a stranger may have made such a file from a whole one. What
they set is sealed afterwards, so nothing but the content itself tells that it is wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import apsw

import holdfast
from holdfast import File, Goal, Message, Record, Text, Thinking, ToolCall, codec
from holdfast.storage.rows import RecordRow
from holdfast.storage.sqlite.record_tables import record_values
from holdfast.storage.sqlite.tables import bind_json, message_rowid
from holdfast.values import Usage
from tests.cli.shell import crash
from tests.storage.damage_cases import seal

LARGEST: Final = 2**63 - 1
DEEP: Final = 100_000
KEYS: Final = ("main", "side", "busy", "aside")
_PARCEL: Final = (
    b'{"role":"user","at":"2026-01-01T00:00:00Z","parts":[{"type":"text","text":"parcel"}]}'
)
_STATE: Final = b'{"at":"2026-01-01T00:00:00Z","data":1}'
Value: TypeAlias = str | bytes | int | float | None


def whole_store(path: Path) -> None:
    """A store with everything in it: branches, forks, tools, a draft, a queue, a file, a goal."""
    with holdfast.open(path) as store:
        main = store.create(key="main", title="A parcel", scope="desk", metadata={"a": 1})
        main.update(goal=Goal("deliver"))
        with main.turn(model="gpt-9", run_id="run-1") as turn:
            turn.user("where is the parcel")
            turn.assistant("I look", tool_calls=[ToolCall("call", "track", {"id": 17})])
            turn.tool_started("call")
            turn.tool("call", [Text("in Oslo"), File("map.txt", "text/plain", b"a map")])
            turn.assistant("it is in Oslo", usage=Usage(input=9, output=4), cost=Decimal("0.01"))
        main.append(Message.user("b" * 70_000))
        main.append(Message.assistant([Thinking("hm"), Text("many letters of the parcel")]))
        main.summarize("the parcel is in Oslo")
        main.append(Message.user("thanks for the parcel"))
        main.undo()
        main.append(Message.user("once more, the parcel"))
        main.enqueue("queued parcel")
        main.append(Record("state", key="a", data={"n": 1}), Record("state", data=[2]))
        main.append(Record("large", data="state " * 20_000, files={"a": File(data=b"f" * 2_000)}))
        main.append(
            Record("profile", data=1, scope="desk"), Record("profile", data=2, scope="desk")
        )
        side = store.get("main").fork(key="side")
        side.append(Record("state", key="a", data={"n": 2}))
        side.append(Message.user("a fork of the parcel"))
        side.fork(key="aside").append(Message.user("a fork of a fork, parcel"))
        store.create(key="busy")
        store.search("parcel")
    crash(path, "busy")


class Crafted:
    """A store's file, changed by SQL."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, *values: Value) -> list[tuple[Value, ...]]:
        found: list[tuple[Value, ...]] = self._connection.execute(sql, values).fetchall()
        return found

    def one(self, sql: str, *values: Value) -> Value:
        return self.run(sql, *values)[0][0]

    def number(self, key: str) -> Value:
        return self.one("SELECT n FROM sessions WHERE key = ?", key)

    def session(self, key: str, /, **values: Value) -> Self:
        for name, value in values.items():
            self.run(f"UPDATE sessions SET {name} = ? WHERE key = ?", value, key)  # noqa: S608
        return self

    def rows(self, table: str, **values: Value) -> Self:
        """Set columns of all rows of a table."""
        for name, value in values.items():
            self.run(f"UPDATE {table} SET {name} = ?", value)  # noqa: S608
        return self

    def bodies(self, change: Callable[[dict[str, object]], object], last: int = 10**9) -> None:
        """Change the bodies of messages, and make their checksums right."""
        for place, raw in self.run(f"SELECT place, CAST(body AS BLOB) FROM messages LIMIT {last}"):  # noqa: S608
            assert isinstance(raw, bytes)
            body = json.loads(raw)
            given = change(body)
            self.body(place, given if isinstance(given, bytes) else json.dumps(body).encode())

    def body(self, place: Value, body: bytes) -> Self:
        ((name, turn),) = self.run("SELECT id, turn FROM messages WHERE place = ?", place)
        assert isinstance(name, str)
        crc = codec.checksum(name, turn if isinstance(turn, int) else None, body)
        self.run(
            "UPDATE messages SET body = ?, crc = ? WHERE place = ?", bind_json(body), crc, place
        )
        return self

    def add_message(self, place: int, body: bytes) -> None:
        name = f"m{place}"
        self.run(
            "INSERT INTO messages VALUES (?, ?, NULL, ?, ?)",
            place, name, codec.checksum(name, None, body), bind_json(body),
        )  # fmt: skip

    def add_record(self, row: RecordRow, branch: int) -> None:
        place = message_rowid(branch, row.number)
        marks = ", ".join("?" * 7)
        self.run(f"INSERT INTO records VALUES ({marks})", place, *record_values(row))  # noqa: S608

    def records(self, **values: Value) -> Self:
        """Set columns of all records, and make their checksums right as far as they can be."""
        self.rows("records", **values)
        return self._seal("records", "place", "place & 4294967295, seq, id, kind, key")

    def store_records(self, **values: Value) -> Self:
        """Set columns of all records of the store, as `records` does."""
        self.rows("store_records", **values)
        return self._seal("store_records", "n", "scope, kind, key, id")

    def _seal(self, table: str, number: str, columns: str) -> Self:
        found: list[Any] = self.run(f"SELECT {number}, {columns}, CAST(body AS BLOB) FROM {table}")  # noqa: S608
        for n, *covered, body in found:
            with suppress(TypeError, ValueError):
                names = [codec.decode_text(v) if isinstance(v, bytes) else v for v in covered]
                crc = codec.record_checksum(*names, body=body or b"")
                self.run(f"UPDATE {table} SET crc = ? WHERE {number} = ?", crc, n)  # noqa: S608
        return self

    def blob(self, data: bytes) -> str:
        name = codec.sha256_hex(data)
        self.run("INSERT OR IGNORE INTO blobs (tenant, sha256, data) VALUES (1, ?, ?)", name, data)
        return name

    def schema(self, name: str, change: Callable[[str], str]) -> Self:
        """Replace the text of a table or an index in the schema."""
        self._connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        text = self.one("SELECT sql FROM sqlite_schema WHERE name = ?", name)
        self.run("UPDATE sqlite_schema SET sql = ? WHERE name = ?", change(str(text)), name)
        return self

    def hide(self, name: str) -> None:
        """Leave a table or an index out of the schema; its pages stay."""
        self._connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        self.run("DELETE FROM sqlite_schema WHERE name = ?", name)

    def show(self, entry: tuple[Value, ...]) -> None:
        """Add a row to the schema that `hide` removed."""
        self._connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        self.run("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", *entry)


@contextmanager
def crafted(path: Path, *, sealed: bool = True) -> Iterator[Crafted]:
    """Change a store's file; what was changed gets right checksums."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        with connection:
            yield Crafted(connection)
            if sealed:
                seal(connection)
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
    finally:
        connection.close()


class RandomChanges:
    """Changes of a store that a seed decides: values, rows and bodies, several of them at once."""

    def __init__(self, store: Crafted, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        self._columns = [
            (str(table), str(column))
            for (table,) in store.run(tables)
            for (column,) in store.run("SELECT name FROM pragma_table_info(?)", table)
        ]

    def make(self) -> None:
        for change in self._random.choices(
            [self._set, self._delete, self._repeat, self._edit_body],
            weights=[6, 1, 1, 3],
            k=self._random.randint(1, 5),
        ):
            with suppress(apsw.Error):  # SQLite refuses some of them.
                change()

    def _set(self) -> None:
        """Set a column of a row, or of all, to any value or to that of another row."""
        table, column = self._random.choice(self._columns)
        rows = [row for (row,) in self._store.run(f"SELECT rowid FROM {table}")]  # noqa: S608
        others = [value for (value,) in self._store.run(f"SELECT {column} FROM {table}")]  # noqa: S608
        value = self._random.choice([*_VALUES, *(others * 5)])
        for row in rows if self._random.random() < 0.25 else self._random.sample(rows, bool(rows)):
            self._store.run(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", value, row)  # noqa: S608

    def _delete(self) -> None:
        table, _ = self._random.choice(self._columns)
        rows = [row for (row,) in self._store.run(f"SELECT rowid FROM {table}")]  # noqa: S608
        for row in self._random.sample(rows, bool(rows)):
            self._store.run(f"DELETE FROM {table} WHERE rowid = ?", row)  # noqa: S608

    def _repeat(self) -> None:
        """Insert a row once more, with other numbers."""
        table, _ = self._random.choice(self._columns)
        for row in self._store.run(f"SELECT * FROM {table} LIMIT 1"):  # noqa: S608
            values = [
                value + self._random.choice([0, 1, 1_000, 2**31]) if type(value) is int else value
                for value in row
            ]
            marks = ", ".join("?" * len(values))
            self._store.run(f"INSERT INTO {table} VALUES ({marks})", *values)  # noqa: S608

    def _edit_body(self) -> None:
        """Replace, remove or add a value somewhere in a message."""
        place, raw = self._random.choice(
            self._store.run("SELECT place, CAST(body AS BLOB) FROM messages")
        )
        assert isinstance(raw, bytes)
        node: Any = (body := json.loads(raw))
        while isinstance(node, dict | list) and node:
            name = self._random.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[name], dict | list) and self._random.random() < 0.8:
                node = node[name]
            elif self._random.random() < 0.2:
                del node[name]
                break
            else:
                node[name] = self._random.choice(_JSON_VALUES)
                break
        self._store.body(place, json.dumps(body).encode())


_VALUES: Final[tuple[Value, ...]] = (
    0, 1, -1, 7, 2**31, 2**32 - 1, 2**32 + 1, LARGEST, -LARGEST - 1, 253_402_300_800_000_000, None,
    "", "a", "\x1b[2J\u202e", "x" * 5_000, "fork", "open", "{}", "[]", "null", '{"a":NaN}', "\0",
    '{"a":' + "[" * 250 + "]" * 250 + "}", b"", b"\xff\xfe", b"\xed\xa0\x80", b"{}", 1.5,
)  # fmt: skip
_JSON_VALUES: Final[tuple[object, ...]] = (
    None, True, -1, 2**63, 10**300, 1.5, "", "\x1b[2J", "\ud800", [], {}, [1], {"a": 1}, "NaN",
    "1e9", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "2026-01-01", "a" * 5_000,
)  # fmt: skip


def add_chain(store: Crafted, length: int, *, hollow: bool, with_records: bool = False) -> None:
    """Add sessions that each fork the one before, the first of them `main`.

    Each has a message of its own, or is `hollow` and starts where the one before it does; and a
    record of its own, if they are `with_records`.
    """
    session, branch, activity = (
        int(str(store.one(f"SELECT max({name}) FROM {table}")))  # noqa: S608
        for name, table in (("n", "sessions"), ("n", "branches"), ("activity", "heads"))
    )
    first = store.run("SELECT id, n FROM sessions WHERE key = 'main'")[0]
    start = store.one("SELECT n FROM branches WHERE session = ? AND number = 1", first[1])
    for n in range(1, length + 1):
        at = 1 if hollow else n
        store.run(
            "INSERT INTO sessions (n, tenant, id, created_at, pinned, archived, metadata, parent, "
            "relation, crc) VALUES (?, 1, ?, 5, 0, 0, '{}', ?, 'fork', 0)",
            session + n, f"chain{n}", first[0] if n == 1 else f"chain{n - 1}",
        )  # fmt: skip
        store.run(
            "INSERT INTO branches VALUES (?, ?, 1, ?, ?, ?, NULL, 5, 'start', ?, 0, ?)",
            branch + n, session + n, start if n == 1 else branch + n - 1, at, at, f"token{n}",
            1 if hollow and with_records else None,
        )  # fmt: skip
        store.run(
            "INSERT INTO heads VALUES (?, 1, ?, 1, ?, 0, NULL, 5, ?, 0, 0, 0, 0, 0, 0, 'parcel', "
            "0, 0, 0, 0, ?)",
            session + n, branch + n, at + (not hollow), activity + n, 1 if with_records else None,
        )  # fmt: skip
        if with_records:
            store.add_record(RecordRow.create(1, at, f"r{n}", ("state", None), _STATE), branch + n)
        if not hollow:
            store.add_message(branch + n << 32 | n + 1, _PARCEL)


Case: TypeAlias = Callable[[Crafted], object]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def add(found: Case) -> Case:
        CASES[name] = found
        return found

    return add


def _with(value: Any, change: Callable[[Crafted, Any], object]) -> Case:  # noqa: ANN401
    return lambda store: change(store, value)


def _nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


def _blob_parts(store: Crafted, part: bytes) -> None:
    name = store.blob(part).encode()
    body = b'{"role":"user","at":"2026-01-01T00:00:00Z","parts":[{"type":"blob","sha256":"%s"}]}'
    store.bodies(lambda _: body % name)


def _set(table: str, **values: Value) -> Case:
    return lambda store: store.rows(table, **values)


def _bodies(**values: object) -> Case:
    return lambda store: store.bodies(lambda body: body.update(values))


# Ancestry.


@case("a session is its own parent")
def _(store: Crafted) -> None:
    store.run("UPDATE sessions SET parent = id, relation = 'fork'")


@case("sessions are each other's parents")
def _(store: Crafted) -> None:
    main, side = (store.one("SELECT id FROM sessions WHERE key = ?", key) for key in KEYS[:2])
    store.session("main", parent=side, relation="fork")
    store.session("side", parent=main, relation="continue")


@case("a session continues a purged one which is its own parent")
def _(store: Crafted) -> None:
    store.run("UPDATE sessions SET parent = 'gone', relation = 'fork'")


@case("a branch is its own parent")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET parent = n, fork_seq = 1, asked_seq = 1")


@case("branches are each other's parents")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET parent = (SELECT max(n) FROM branches) + 1 - n")


@case("a branch starts beyond its parent")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET fork_seq = 900000000 WHERE parent IS NOT NULL")


@case("a branch starts at a negative message")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET fork_seq = -5, asked_seq = -9")


@case("first branches start after a message")
def _(store: Crafted) -> None:
    store.rows("branches", fork_seq=8)


@case("a branch starts at the largest message")
def _(store: Crafted) -> None:
    store.rows("branches", fork_seq=LARGEST, asked_seq=LARGEST, last_seq=LARGEST)


@case("a branch belongs to another session")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET session = 2, number = number + n WHERE session <> 2")


@case("branch numbers are huge")
def _(store: Crafted) -> None:
    store.run("UPDATE branches SET n = n + 9223372036854775000")
    store.run("UPDATE heads SET branch = branch + 9223372036854775000")


@case("a head names another session's branch")
def _(store: Crafted) -> None:
    store.run("UPDATE heads SET branch = (SELECT max(n) FROM branches)")


@case("a head names a missing branch")
def _(store: Crafted) -> None:
    store.rows("heads", branch=77)


@case("a head's branch number is another")
def _(store: Crafted) -> None:
    store.rows("heads", branch_no=5)


# Numbers.


@case("a head is far beyond the messages")
def _(store: Crafted) -> None:
    store.rows("heads", seq=4_000_000_000)


@case("a head is beyond what a number of a message can be")
def _(store: Crafted) -> None:
    store.rows("heads", seq=LARGEST)


@case("a head is negative")
def _(store: Crafted) -> None:
    store.rows("heads", seq=-LARGEST)


@case("messages are missing in the middle")
def _(store: Crafted) -> None:
    store.run("DELETE FROM messages WHERE place & 4294967295 IN (2, 4)")


@case("a message has the last number there is")
def _(store: Crafted) -> None:
    store.run("UPDATE messages SET place = 9223372036854775807 "
              "WHERE place = (SELECT max(place) FROM messages)")  # fmt: skip


for _name, _at in (
    ("negative", -LARGEST - 1),
    ("beyond the year 9999", 253_402_300_800_000_000),
    ("the largest number", LARGEST),
    ("the last microsecond of the year 9999", 253_402_300_799_999_999),
    ("the first microsecond of the year 1", -62_135_596_800_000_000),
):
    CASES[f"times are {_name}"] = _with(
        _at,
        lambda store, at: (
            store.rows("sessions", created_at=at, trashed_at=None),
            store.rows("heads", updated_at=at),
            store.rows("branches", created_at=at),
            store.rows("turns", started_at=at, ended_at=at),
            store.rows("tools", started_at=at, ended_at=at),
            store.rows("queue", created_at=at),
        ),
    )
CASES["leases end at the largest number"] = _set("turns", lease_until=LARGEST)
CASES["sessions were trashed at the largest number"] = _set("sessions", trashed_at=LARGEST)
CASES["sessions were trashed and purged"] = _set("sessions", trashed_at=5, purged_at=LARGEST)

for _name, _count in (("largest", LARGEST), ("negative", -LARGEST - 1)):
    CASES[f"counts of heads are {_name}"] = _with(_count, lambda store, count: store.rows(
        "heads", turns=count, queued=count, input=count, output=count, cache_read=count,
        cache_write=count, reasoning=count, cost=count, preview_rank=count, preview_seq=count,
    ))  # fmt: skip
    CASES[f"counts of turns are {_name}"] = _with(
        _count,
        lambda store, count: store.rows(
            "turns", input=count, output=count, cost=count, first_seq=count
        ),
    )
    CASES[f"counts of usage are {_name}"] = _with(
        _count,
        lambda store, count: store.rows(
            "usage", input=count, output=count, cost=count, counted=count, estimated=count
        ),
    )
    CASES[f"days of usage are {_name}"] = _set("usage", day=_count)
    CASES[f"the branch of a head is {_name}"] = _set("heads", branch_no=_count)
    CASES[f"the open turn is {_name}"] = _set("heads", open_turn=_count)
    CASES[f"activities are {_name}"] = _with(
        _count,
        lambda store, count: store.run(
            "UPDATE heads SET activity = ? + session * iif(? > 0, -1, 1)", count, count
        ),
    )
    CASES[f"numbers in meta are {_name}"] = _with(
        _count,
        lambda store, count: store.run("UPDATE meta SET value = ? WHERE name <> 'log'", count),
    )
    CASES[f"erasures in meta are {_name}"] = _with(
        _count,
        lambda store, count: store.run(
            "INSERT INTO meta VALUES ('erasures of 1', ?), ('activity of 1', ?)", count, count
        ),
    )
    CASES[f"turns of messages are {_name}"] = _with(_count, lambda store, count: [
        store.run(
            "UPDATE messages SET turn = ?, crc = ? WHERE place = ?",
            count, codec.checksum(str(name), count, raw), place,
        )
        for place, name, raw in store.run("SELECT place, id, CAST(body AS BLOB) FROM messages")
        if isinstance(raw, bytes) and count >= 0
    ])  # fmt: skip


# Records.
for _seq in (0, 900, -1, 2**32 - 2, LARGEST):
    CASES[f"records lie behind message {_seq}"] = _with(
        _seq, lambda store, seq: store.records(seq=seq)
    )
for _number in (None, 0, 1, -1, 2**31 - 1, LARGEST):
    CASES[f"heads count {_number} records"] = _set("heads", records=_number)
    CASES[f"branches have {_number} records of their parents"] = _set(
        "branches", fork_record=_number
    )
CASES["records are of a branch that is not there"] = lambda store: (
    store.run("UPDATE records SET place = place + (77 << 32)"),
    store.records(),
)
CASES["a record has the last number there is"] = lambda store: (
    store.run("UPDATE records SET place = place | 4294967295 WHERE place IN "
              "(SELECT max(place) FROM records GROUP BY place >> 32)"),
    store.records(),
)  # fmt: skip
CASES["records go back"] = lambda store: (
    store.run("UPDATE records SET seq = 9 - (place & 4294967295)"),
    store.records(),
)
CASES["records of the store are all current"] = lambda store: store.store_records(body="{}")
CASES["all ids of records are equal"] = lambda store: store.records(id="x").store_records(id="x")
for _value in (5, 2.5, b"\xff\xfe", b"", "", b"plain", "\0x"):
    CASES[f"names of records are {_value!r}"] = _with(
        _value,
        lambda store, value: store.records(id=value, kind=value, key=value).store_records(
            scope=value, kind=value, key=value, id=value
        ),
    )
    CASES[f"bodies of records are {_value!r}"] = _with(
        _value, lambda store, value: store.records(body=value).store_records(body=value)
    )
for _value in (
    '{"at":"2026-01-01T00:00:00Z","data":' + "[" * DEEP + "]" * DEEP + "}",
    '{"at":"2026-01-01T00:00:00Z","data":NaN}',
    '{"at":"2026-01-01T00:00:00"}',
    '{"at":"2026-01-01T00:00:00Z","data_sha256":"../../etc/passwd"}',
    '{"at":"2026-01-01T00:00:00Z","files":{"a":{"sha256":"x","size":-5}}}',
    '{"at":"2026-01-01T00:00:00Z","files":{"a":5}}',
):
    CASES[f"bodies of records are {_value[:60]}"] = _with(
        _value, lambda store, value: store.records(body=value).store_records(body=value)
    )


# Types that a column may not have.
CASES["provenance is {}"] = _set("sessions", provenance="{}")
for _value in (5, 2.5, b"\xff\xfe", b"", "", b"plain", "text", "\0x"):
    CASES[f"names of sessions are {_value!r}"] = _with(
        _value,
        lambda store, value: store.rows(
            "sessions", scope=value, agent=value, title=value, model=value, cwd=value
        ),
    )
    CASES[f"a key is {_value!r}"] = _with(
        _value, lambda store, value: store.session("main", key=value)
    )
    CASES[f"an id is {_value!r}"] = _with(
        _value, lambda store, value: store.session("main", id=value)
    )
    CASES[f"a parent is {_value!r}"] = _set("sessions", parent=_value, relation="fork")
    CASES[f"a preview is {_value!r}"] = _set("heads", preview=_value)
    CASES[f"metadata is {_value!r}"] = _set("sessions", metadata=_value)
    CASES[f"a goal is {_value!r}"] = _set("sessions", goal=_value)
    CASES[f"holders are {_value!r}"] = _set("turns", holder=_value)
    CASES[f"texts of turns are {_value!r}"] = _set(
        "turns", run_id=_value, model=_value, error=_value
    )
    CASES[f"tools are {_value!r}"] = _set("tools", name=_value)
    CASES[f"drafts are {_value!r}"] = _set("drafts", record=_value)
    CASES[f"models of usage are {_value!r}"] = _set("usage", model=_value)
    CASES[f"queued input is {_value!r}"] = _set("queue", id=_value, body=_value)
    CASES[f"a tenant is {_value!r}"] = _with(
        _value, lambda store, value: store.run("INSERT INTO tenants VALUES (2, ?)", value)
    )
    CASES[f"values in meta are {_value!r}"] = _with(
        _value, lambda store, value: store.run("UPDATE meta SET value = ?", value)
    )
    CASES[f"erasures in meta are {_value!r}"] = _with(
        _value,
        lambda store, value: store.run(
            "INSERT INTO meta VALUES ('erasures of 1', ?), ('activity of 1', ?)", value, value
        ),
    )
CASES["choices are unknown"] = lambda store: (
    store.rows("sessions", title_by="nobody", relation="enemy", parent="x"),
    store.rows("branches", reason="why"),
    store.rows("turns", state="confused"),
    store.rows("tools", outcome="sad"),
)
CASES["flags are numbers"] = _set("sessions", pinned=2, archived=-7)


# JSON.
for _name, _json in (
    ("deep", _nested(DEEP)),
    ("rather deep", _nested(700)),
    ("a deep object", '{"a":' * 700 + "1" + "}" * 700),
    ("NaN", '{"a":NaN,"b":-Infinity}'),
    ("out of range", '{"a":1e999,"b":' + "9" * 5000 + "}"),
    ("an array", "[]"),
    ("cut off", '{"a":'),
    ("null", "null"),
    ("null in hostile text", '{"a":"\x1b]0;owned\x07"}'),
):
    CASES[f"metadata is {_name}"] = _set("sessions", metadata=_json)
    CASES[f"metadata holds {_name}"] = _set("sessions", metadata=f'{{"x":{_json}}}')
    CASES[f"a goal is {_name}"] = _set("sessions", goal=_json)
    CASES[f"a goal's text is {_name}"] = _set("sessions", goal=f'{{"text":{_json}}}')
    CASES[f"holders are {_name}"] = _set("turns", holder=_json)
    CASES[f"drafts are {_name}"] = _set("drafts", record=_json)
    CASES[f"queued input is {_name}"] = _set("queue", body=_json)
    CASES[f"bodies are {_name}"] = _with(
        _json, lambda store, text: store.bodies(lambda _: text.encode())
    )
    CASES[f"metadata of messages is {_name}"] = _with(
        _json,
        lambda store, text: store.bodies(
            lambda _: (
                b'{"role":"user","at":"2026-01-01T00:00:00Z","metadata":{"x":%s}}' % text.encode()
            )
        ),
    )
    CASES[f"arguments of calls are {_name} beside a lone surrogate"] = _with(
        _json,
        lambda store, text: store.bodies(
            lambda _: (
                b'{"role":"assistant","at":"2026-01-01T00:00:00Z","name":"\xed\xa0\x80",'
                b'"parts":[{"type":"tool_call","id":"c","name":"x","arguments":%s}]}'
                % text.encode()
            )
        ),
    )
    CASES[f"arguments of calls are {_name}"] = _with(
        _json,
        lambda store, text: store.bodies(
            lambda _: (
                b'{"role":"assistant","at":"2026-01-01T00:00:00Z",'
                b'"parts":[{"type":"tool_call","id":"c","name":"x","arguments":%s}]}'
                % text.encode()
            )
        ),
    )
    CASES[f"a blob is a part whose data is {_name}"] = _with(
        _json,
        lambda store, text: _blob_parts(
            store, b'{"type":"raw","source":"s","data":%s}' % text.encode()
        ),
    )


# Messages.
for _said in (
    "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
):  # fmt: skip
    CASES[f"messages are of {_said}"] = _bodies(at=_said)
for _cost in ("NaN", "sNaN", "-Infinity", "1E+999999999", "-5", "1E-999999999"):
    CASES[f"messages cost {_cost}"] = _bodies(cost=_cost)
for _count in (LARGEST, -LARGEST, 10**30):
    CASES[f"messages have {_count} tokens"] = _bodies(tokens=_count)
    CASES[f"messages used {_count} tokens"] = _bodies(usage={"input": _count, "output": _count})
    CASES[f"files have {_count} bytes"] = _bodies(
        parts=[{"type": "file", "sha256": "0" * 64, "size": _count}]
    )
for _hash in ("", "x", "../../etc/passwd", "\x1b[2J", "0" * 64):
    CASES[f"the hash of a file is {_hash!r}"] = _bodies(parts=[{"type": "file", "sha256": _hash}])
    CASES[f"the hash of a blob is {_hash!r}"] = _bodies(parts=[{"type": "blob", "sha256": _hash}])
CASES["a file has neither a hash nor data"] = _bodies(parts=[{"type": "file"}])
CASES["a file has data in its body"] = _bodies(parts=[{"type": "file", "data": "YQ=="}])
CASES["messages are summaries of themselves"] = lambda store: [
    store.body(place, json.dumps(
        {"role": "summary", "at": "2026-01-01T00:00:00Z", "covers": name,
         "parts": [{"type": "text", "text": "all of it"}]}, separators=(",", ":")).encode())
    for place, name in store.run("SELECT place, id FROM messages")
]  # fmt: skip
CASES["summaries cover the newest message"] = lambda store: store.bodies(
    lambda body: json.dumps(
        {"role": "summary", "at": "2026-01-01T00:00:00Z",
         "covers": store.one("SELECT id FROM messages ORDER BY place DESC LIMIT 1")},
        separators=(",", ":")).encode()
)  # fmt: skip
CASES["messages are erased and have text"] = _bodies(status="erased")
CASES["messages are damaged"] = _bodies(status="damaged")
CASES["all ids are equal"] = lambda store: [
    store.run("UPDATE messages SET id = 'x', crc = ? WHERE place = ?",
              codec.checksum("x", turn if isinstance(turn, int) else None, raw), place)
    for place, turn, raw in store.run("SELECT place, turn, CAST(body AS BLOB) FROM messages")
    if isinstance(raw, bytes)
]  # fmt: skip
CASES["ids of messages are bytes"] = lambda store: store.run(
    "UPDATE messages SET id = CAST(id AS BLOB)"
)
CASES["ids of messages are numbers"] = lambda store: store.run("UPDATE messages SET id = place")
CASES["bodies are numbers"] = lambda store: store.run("UPDATE messages SET body = 5")
CASES["bodies are bytes that are no text"] = lambda store: store.bodies(lambda _: b"\xff\xfe{}")

HOSTILE_TEXT: Final = "\x1b]0;owned\x07\x1b[2J\r\n\u202e\x9b31m"
CASES["names have escapes and newlines"] = lambda store: (
    store.rows("sessions", scope=HOSTILE_TEXT, agent=HOSTILE_TEXT, title=HOSTILE_TEXT,
               model=HOSTILE_TEXT, cwd=HOSTILE_TEXT),
    store.rows("heads", preview=HOSTILE_TEXT),
    store.rows("turns", error=HOSTILE_TEXT, model=HOSTILE_TEXT),
    store.run("UPDATE branches SET token = ? || n", HOSTILE_TEXT),
    [store.session(key, id=HOSTILE_TEXT + key) for key in KEYS],
)  # fmt: skip
CASES["names are of a megabyte"] = lambda store: (
    store.rows("sessions", scope="x" * 10**6, title="word " * 200_000, cwd="y" * 10**6),
    store.rows("heads", preview="\n\x1b" * 500_000),
)


# Rows of others.
CASES["rows belong to sessions that are not there"] = lambda store: [
    store.run(f"UPDATE {table} SET session = session + 90")  # noqa: S608
    for table in ("turns", "tools", "drafts", "queue", "usage", "heads", "branches")
]
CASES["tools and drafts belong to unknown turns"] = lambda store: (
    store.rows("tools", turn=99),
    store.rows("drafts", turn=99),
)
CASES["a queue counts others"] = _set("heads", queued=1000)
CASES["positions of tools are equal"] = _set("tools", position=LARGEST)
CASES["drafts have no opening"] = _set("drafts", number=LARGEST)
CASES["tables are empty"] = lambda store: [
    store.run(f"DELETE FROM {table}")  # noqa: S608
    for table in ("sessions", "branches", "heads", "meta", "tenants")
]
for _table in (
    "sessions", "branches", "heads", "meta", "tenants", "turns", "messages", "blobs",
    "metadata_marks",
):  # fmt: skip
    CASES[f"the table {_table} is empty"] = _with(
        _table,
        lambda store, table: store.run(
            f"DELETE FROM {table}"  # noqa: S608
        ),
    )
CASES["blobs are others"] = _set("blobs", data=b"another")
CASES["blobs are texts"] = lambda store: store.run("UPDATE blobs SET data = x'ffff'")
CASES["a blob is used by a message that is not there"] = _set("blob_uses", blob=LARGEST)
CASES["marks of metadata are another session's"] = lambda store: store.run(
    "UPDATE metadata_marks SET session = ?", store.number("side")
)
CASES["marks of metadata are those of all"] = lambda store: store.run(
    "INSERT OR IGNORE INTO metadata_marks SELECT n, mark, s.tenant FROM sessions s, metadata_marks"
)
CASES["marks of metadata are of no session"] = _set("metadata_marks", session=LARGEST)


# Schemas.
CASES["the format number is huge"] = lambda store: store.run("PRAGMA user_version = 2147483647")
CASES["the format number is negative"] = lambda store: store.run("PRAGMA user_version = -1")
CASES["the format number is zero"] = lambda store: store.run("PRAGMA user_version = 0")
CASES["another program's file"] = lambda store: store.run("PRAGMA application_id = 5")


def _replaced(name: str, old: str, new: str) -> Case:
    return lambda store: store.schema(name, lambda text: text.replace(old, new))


CASES["a generated column takes memory"] = lambda store: (
    store.run("ALTER TABLE heads RENAME COLUMN preview TO old"),
    store.run("ALTER TABLE heads ADD COLUMN preview ANY AS (hex(zeroblob(400000000)))"),
)
CASES["a generated column is another's text"] = lambda store: (
    store.run("ALTER TABLE sessions RENAME COLUMN title TO old"),
    store.run("ALTER TABLE sessions ADD COLUMN title ANY AS (replace(hex(zeroblob(999)),'0',key))"),
)
CASES["tables are not strict"] = lambda store: [
    store.schema(name, lambda text: text.replace(" STRICT,", "").replace(" STRICT", ""))
    for name in ("sessions", "heads", "messages", "branches", "turns")
]
CASES["messages are a view"] = lambda store: (
    store.run("ALTER TABLE messages RENAME TO hidden"),
    store.run(
        "CREATE VIEW messages AS WITH RECURSIVE x(y) AS (SELECT 1 UNION ALL SELECT y + 1 FROM x) "
        "SELECT hidden.* FROM hidden, x"
    ),
)
CASES["messages are a virtual table"] = lambda store: (
    store.run("DROP TABLE messages"),
    store.run("CREATE VIRTUAL TABLE messages USING fts5(place, id, turn, crc, body)"),
)
CASES["an index is over an expression"] = lambda store: (
    store.run("CREATE INDEX slow ON messages (hex(zeroblob(1000)), place)"),
)
CASES["an index is partial"] = _replaced(
    "recent_by_recency", "(tenant, trashed, recency)", "(tenant, trashed, recency) WHERE tenant > 1"
)
CASES["statistics mislead the planner"] = lambda store: (
    store.run("ANALYZE"),
    store.run("UPDATE sqlite_stat1 SET stat = '1000000000 1 1'"),
)
CASES["triggers and views are planted"] = lambda store: (
    store.run("CREATE VIEW v AS SELECT load_extension('/tmp/x.so')"),
    store.run("CREATE TRIGGER t AFTER INSERT ON messages BEGIN DELETE FROM messages; END"),
)
CASES["an index is missing"] = lambda store: [
    store.run(f"DROP INDEX {name}")
    for name in ("sessions_by_id", "recent_by_recency", "messages_by_id", "messages_summaries")
]
CASES["a sequence is exhausted"] = lambda store: store.run(
    "UPDATE sqlite_sequence SET seq = ?", LARGEST
)
CASES["a sequence is of another kind"] = lambda store: store.run(
    "UPDATE sqlite_sequence SET seq = 'x'"
)
CASES["branch numbers go beyond a message's"] = lambda store: store.run(
    "UPDATE sqlite_sequence SET seq = 2147483647"
)
