"""A store's file from a stranger: whatever is in it, every command ends, and says what is wrong.

The rows have right checksums (`crafted_stores`), so only what they hold shows that no store wrote
them. A command then prints what can be read, or reports damage; it never fails with a traceback,
never runs on for ever, and prints nothing that acts on a terminal.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Raw, Record
from holdfast.clock import EPOCH
from holdfast.codec import decode, encode
from holdfast.errors import Conflict, Damaged
from holdfast.search import index_file
from holdfast.validation import MAX_DEPTH
from holdfast.values import JSON
from tests.cli.nursery import Nursery
from tests.cli.shell import RAW, Ran, Shell
from tests.security.crafted_stores import CASES, RandomChanges, add_chain, crafted, whole_store

_READS = ("ls", "tree main", "show main", "search parcel", "stats", "doctor")
_COMMANDS = (
    *_READS, "ls --metadata a:=1 --key-prefix m", "ls --all --json", "ls --text parcel",
    "tree side --json", "show busy",
    "show main --tools --thinking --branch 1", "log", "log main --json",
    "search parcel --all-branches --around 2", "search parcel --session side --json",
    "window main", "window side --json --max-tokens 100", "export -o out.jsonl",
    "export main -o - --no-redact", "stats --json", "doctor --json", "index rebuild",
    "recover --all", "fork main --at 2", "undo main", "append main hello",
    "prune --older-than 1d --json", "backup copy.db", "copy {store} other.db", "doctor --fix",
    "purge side -y",
)  # fmt: skip
_QUICK = (
    "marks of metadata are those of all",
    "a session is its own parent",
    "sessions are each other's parents",
    "branches are each other's parents",
    "first branches start after a message",
    "a branch starts at the largest message",
    "a branch belongs to another session",
    "a head is far beyond the messages",
    "a head's branch number is another",
    "times are beyond the year 9999",
    "counts of heads are negative",
    "counts of usage are negative",
    "days of usage are largest",
    "names of sessions are 5",
    "an id is b'\\xff\\xfe'",
    "erasures in meta are 'text'",
    "metadata is deep",
    "a goal is NaN",
    "holders are deep",
    "arguments of calls are rather deep",
    "arguments of calls are NaN beside a lone surrogate",
    "messages are of 2026-01-01T00:00:00",
    "messages cost 1E+999999999",
    "names have escapes and newlines",
    "a generated column takes memory",
    "messages are a view",
    "records lie behind message 900",
    "branches have 2147483647 records of their parents",
)
_RECORD_CASES = [
    pytest.param(name, marks=pytest.mark.long if number % 4 else ())
    for number, name in enumerate(name for name in CASES if "record" in name)
]
# What nothing shows to be wrong.
_POSSIBLE_RECORDS = {"heads count 2147483647 records", "all ids of records are equal"}


@pytest.fixture(scope="module")
def _nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(Shell(tmp_path_factory.getbasetemp()).environment, warm=True) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "agent.db"
    whole_store(path)
    return path


@pytest.fixture
def shell(tmp_path: Path, _whole: Path, _nursery: Nursery) -> Shell:
    """A shell on a copy of a whole store."""
    folder = tmp_path / "home"
    shutil.copytree(_whole.parent, folder)
    return Shell(folder / _whole.name, _nursery)


def _check(command: str, ran: Ran) -> None:
    """Assert that a command ended as a command may end."""
    assert "Traceback" not in ran.err, f"{command}: {ran.err}"
    assert ran.code in range(7), f"{command}: {ran.code}"
    shown = ran.err if "--no-redact" in command else ran.out + ran.err
    assert not RAW & set(shown), command


@pytest.mark.parametrize("name", _QUICK)
def test_reading_ends_with_what_is_there_or_an_error(shell: Shell, name: str) -> None:
    """No content of a row hangs a command that reads, or makes it fail in another way."""
    with crafted(shell.store) as store:
        CASES[name](store)
    for command in _READS:
        _check(command, shell.run(*command.split()))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_every_command_ends_with_what_is_there_or_an_error(
    shell: Shell, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for everything that could be thought of, and for every command."""
    with crafted(shell.store) as store:
        CASES[name](store)
    _check_all(shell, tmp_path, monkeypatch)


def _check_all(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each command on a copy of its own."""
    for number, command in enumerate(_COMMANDS):
        folder = tmp_path / f"{number}"
        shutil.copytree(shell.store.parent, folder)
        monkeypatch.chdir(folder)
        one = Shell(folder / shell.store.name, shell.nursery)
        _check(command, one.run(*command.format(store=one.store).split()))


@pytest.mark.parametrize("seed", range(6))
def test_reading_random_content_ends_with_what_is_there_or_an_error(
    shell: Shell, seed: int
) -> None:
    """Several things that cannot be, at once."""
    with crafted(shell.store) as store:
        RandomChanges(store, seed).make()
    for command in _READS:
        _check(command, shell.run(*command.split()))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 150))
def test_every_command_on_random_content_ends_with_what_is_there_or_an_error(
    shell: Shell, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crafted(shell.store) as store:
        RandomChanges(store, seed).make()
    _check_all(shell, tmp_path, monkeypatch)


def test_the_whole_store_is_whole(shell: Shell) -> None:
    """What the cases change is a store in which nothing is wrong but a turn that a crash left."""
    with crafted(shell.store):
        pass
    found = shell.run("doctor", "--json")
    assert '"damage": []' in found.out
    for command in _READS[:-1]:
        assert shell.run(*command.split()).code == 0


@pytest.mark.parametrize(
    "name", ["times are negative", "names of sessions are 5", "metadata is deep"]
)
def test_a_session_that_cannot_be_is_listed_as_damaged(shell: Shell, name: str) -> None:
    """It does not hide the others, and cannot be read as if nothing were wrong."""
    with crafted(shell.store) as store:
        CASES[name](store)
    with holdfast.open(shell.store, readonly=True) as opened:
        assert {info.state for info in opened.sessions()} == {"damaged"}
        with pytest.raises(Damaged):
            opened.get("main").info()
        assert opened.verify()


def test_a_session_that_cannot_be_is_not_continued(shell: Shell) -> None:
    """Nor changed: what it is said to be cannot be read."""
    with crafted(shell.store) as store:
        CASES["provenance is {}"](store)
    assert shell.run("fork", "main").code != 0
    with holdfast.open(shell.store) as opened:
        session = opened.sessions(limit=1000).items[0]
        with pytest.raises(Damaged, match="provenance of a session cannot be decoded"):
            opened.get(session.id).fork()


def test_one_session_that_cannot_be_hides_no_other(shell: Shell) -> None:
    """Only its own row is refused."""
    with crafted(shell.store) as store:
        store.session("side", created_at=2**62)
    with holdfast.open(shell.store, readonly=True) as opened:
        states = {info.key: info.state == "damaged" for info in opened.sessions()}
        assert states == {"main": False, "side": True, "aside": False, "busy": False}
        assert opened.search("parcel").items


@pytest.mark.parametrize(
    "name",
    [
        "a generated column takes memory",
        "an index is over an expression",
        "an index is partial",
        "tables are not strict",
    ],
)
def test_tables_that_are_not_a_stores_are_not_read(shell: Shell, name: str) -> None:
    """Nothing that a file defines is computed; what it holds can still be salvaged."""
    with crafted(shell.store) as store:
        CASES[name](store)
    with pytest.raises(Damaged, match="no Holdfast store has"):
        holdfast.open(shell.store)
    with holdfast.open(shell.store, readonly=True) as opened:
        with pytest.raises(Damaged, match="no Holdfast store has"):
            opened.sessions()
        assert [damage.what for damage in opened.verify()] == [
            "the schema of the file is not that of a store"
        ]
        opened.salvage(str(shell.store.with_name("salvaged.db")))
    with holdfast.open(shell.store.with_name("salvaged.db")) as salvaged:
        assert salvaged.get("side").messages()[-1].text == "a fork of the parcel"


@pytest.mark.parametrize(
    "name", ["triggers and views are planted", "statistics mislead the planner"]
)
def test_what_changes_no_result_is_no_reason_to_refuse_a_file(shell: Shell, name: str) -> None:
    """Triggers and views are never run; statistics only choose between ways to one result."""
    with crafted(shell.store) as store:
        CASES[name](store)
    assert shell.run("append", "main", "hello").code == 0


@pytest.mark.parametrize("hollow", [True, False], ids=["hollow", "whole"])
@pytest.mark.parametrize("with_records", [True, False], ids=["records", "none"])
def test_a_chain_of_forks_costs_its_length(
    shell: Shell, *, hollow: bool, with_records: bool
) -> None:
    """Forks of forks without a message of their own, which no store has, are not all walked.

    Those with records and no message are.
    """
    with crafted(shell.store) as store:
        add_chain(store, 1_000, hollow=hollow, with_records=with_records)
    for command in _READS:
        _check(command, shell.run(*command.split()))
    with holdfast.open(shell.store, readonly=True) as opened:
        if not hollow or with_records:
            newest = opened.get("chain1000")
            assert newest.messages(limit=1)[0].seq == newest.head().seq
            assert (newest.record("state") is not None) is with_records


@pytest.mark.parametrize("name", _RECORD_CASES)
def test_records_that_cannot_be_are_damage_or_as_they_are(shell: Shell, name: str) -> None:
    """Nothing but damage is raised, and what no store writes is found by verify."""
    with crafted(shell.store) as store:
        whole = store.run("SELECT * FROM records"), store.run("SELECT * FROM heads")
        CASES[name](store)
        changed = whole != (store.run("SELECT * FROM records"), store.run("SELECT * FROM heads"))
    with holdfast.open(shell.store) as opened:
        for key in ("main", "side"):
            for kind, named in (("state", "a"), ("state", None), ("large", None)):
                with suppress(Damaged):
                    opened.get(key).record(kind, named)
                with suppress(Damaged):
                    opened.get(key).record(kind, named, at=1)
            with suppress(Damaged, Conflict):
                opened.get(key).append(Record("state", data=1), Record("profile", scope="desk"))
        assert opened.verify() or not changed or name in _POSSIBLE_RECORDS
        opened.salvage(str(shell.store.with_name("salvaged.db")))
    with holdfast.open(shell.store.with_name("salvaged.db")) as salvaged:
        assert salvaged.verify() == []
        salvaged.get("main").append(Record("state", data="goes on"))


def test_an_index_entry_that_differs_from_its_row_ends_a_list(shell: Shell) -> None:
    """A page that would begin where the last one began is damage, not the same page for ever."""
    rows = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?"
    name = "recent_by_recency"
    with crafted(shell.store) as store:
        (entry,) = store.run(rows, name)
        store.hide(name)
    with crafted(shell.store) as store:
        store.run("UPDATE recent SET recency = recency + 1000000")
    with crafted(shell.store) as store:
        store.show(entry)
    for command in ("ls", "ls --all", "log", "search parcel", "doctor"):
        _check(command, shell.run(*command.split()))


def test_a_newest_record_that_its_index_lacks_is_damage(shell: Shell) -> None:
    """An older state is never returned for the newest one."""
    rows = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?"
    with holdfast.open(shell.store) as opened:
        opened.get("main").fork(key="late")
    with crafted(shell.store) as store:
        (entry,) = store.run(rows, "records_by_key")
        store.hide("records_by_key")
    with crafted(shell.store) as store:
        store.run("UPDATE records SET kind = 'state', key = 'a' WHERE kind = 'large'")
        store.records()
    with crafted(shell.store) as store:
        store.show(entry)
    with holdfast.open(shell.store, readonly=True) as opened:
        for key in ("main", "late"):
            with pytest.raises(Damaged, match="its index does not have"):
                opened.get(key).record("state", "a")


def test_a_head_beyond_what_a_file_holds_is_damage(shell: Shell) -> None:
    """So nothing goes through four thousand million messages that are not there."""
    with crafted(shell.store) as store:
        CASES["a head is far beyond the messages"](store)
    with holdfast.open(shell.store, readonly=True) as opened:
        with pytest.raises(Damaged):
            opened.get("main").head()
        assert {info.state for info in opened.sessions()} == {"damaged"}


def test_a_history_that_begins_nowhere_is_damage(shell: Shell) -> None:
    """Its first branch says that it starts after some message, and names no parent."""
    with crafted(shell.store) as store:
        CASES["first branches start after a message"](store)
    with holdfast.open(shell.store, readonly=True) as opened:
        for branch in (None, 1):
            with pytest.raises(Damaged, match="names no parent"):
                opened.get("main").messages(branch=branch)


@pytest.mark.parametrize(
    "body",
    [
        b'"metadata":{"x":' + b"[" * 300 + b"]" * 300 + b"}",
        b'"metadata":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'"metadata":{"\xed\xa0\x80":NaN}',
        b'"metadata":{"\xed\xa0\x80":1e999}',
        b'"metadata":{"x":NaN}',
        b'"cost":"NaN"',
        b'"cost":"1E+999999999"',
        b'"cost":"-5"',
        b'"usage":{"input":-1}',
        b'"at":"2026-01-01T00:00:00"',
    ],
    ids=range(10),
)
def test_only_what_can_be_encoded_is_decoded(body: bytes) -> None:
    """Whatever the checksum says."""
    at = b"" if b'"at"' in body else b'"at":"2026-01-01T00:00:00Z",'
    with pytest.raises(Damaged):
        decode(
            b'{"role":"user",' + at + body + b"}",
            id="m", seq=1, turn_id=None, blob=lambda _: None,
        )  # fmt: skip


def test_brackets_in_a_text_are_no_depth() -> None:
    """And a value that is as deep as it may be is decoded as it was encoded."""
    value: JSON = "[" * 1000 + '\\"{'
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    message = Message.user([Raw("x", value)], metadata={"a": value})
    item = encode(message, EPOCH)
    found = decode(item.body, id="m", seq=1, turn_id=None, blob=lambda _: None)
    assert (found.parts, found.metadata) == (message.parts, message.metadata)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = 'x' WHERE name = 'activity'",
        "UPDATE meta SET value = 'x' WHERE name = 'erasures'",
        'UPDATE meta SET value = \'{"branch":9999999999,"seq":5,"crc":1}\' WHERE name = \'anchor\'',
        "UPDATE docs SET at = 9223372036854775807",
        "ALTER TABLE docs RENAME TO hidden; CREATE VIEW docs AS SELECT * FROM hidden",
    ],
    ids=["activity", "erasures", "anchor", "times", "view"],
)
def test_a_crafted_search_index_is_made_anew_or_does_no_harm(shell: Shell, change: str) -> None:
    """It is derived from the store, so whatever it holds costs a search nothing."""
    index = shell.store.with_name(f"{shell.store.name}-search")
    vfs = "cksmvfs" if index_file.has_checksums() else None
    connection = apsw.Connection(str(index), vfs=vfs)
    connection.execute(change)
    connection.close()
    ran = shell.run("search", "parcel")
    _check("search", ran)
    assert "parcel" in ran.out


def test_a_file_that_is_no_database_is_refused(shell: Shell) -> None:
    """Empty, cut off, or of pages that are not SQLite's."""
    whole = shell.store.read_bytes()
    for companion in shell.store.parent.iterdir():
        companion.unlink()
    for data in (b"", whole[:100], b"\0" * 8192, whole[:16] + b"\0" * 8176, os.urandom(8192)):
        shell.store.write_bytes(data)
        shell.store.chmod(0o600)
        for command in _READS:
            ran = shell.run(*command.split())
            _check(command, ran)
            assert ran.code


def test_all_names_in_the_quick_list_are_cases() -> None:
    """So that none is left out when a case gets another name."""
    assert set(_QUICK) <= set(CASES)
