"""Salvage of files whose header, schema or trees are damaged: every message whose page is whole.

Where a message is in the file is found by a word at the end of its text, and not by reading pages.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import File, Message
from holdfast.errors import Damaged, SchemaTooNew, StoreUnavailable
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.repair import page_scan
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.values import SalvageReport
from tests.storage.damage_cases import (
    Content,
    carried,
    content_of,
    copy_store,
    flipped,
    messages_of,
    put,
)

PAGE = 4096
HEADER = 116  # Bytes of the file's header, and of that of its first page.


def _word(session: int, number: int) -> str:
    return f"word-{session:02}-{number:03}-end"


def _write(store: holdfast.Store) -> None:
    for number in range(4):
        session = store.session(f"s{number}", title=f"title {number}")
        session.append(
            *(Message.user("lorem ipsum " * 60 + _word(number, n)) for n in range(1, 31))
        )
    store.session("s0").append(Message.assistant("long " * 5000))
    store.session("s1").append(Message.user([File(name="f", mime="text/plain", data=b"x" * 99)]))
    with store.session("s2").turn(model="m") as turn:
        turn.user("a question")
        turn.assistant("an answer")
    store.session("s3").enqueue("later")
    store.session("s0").fork(10, key="fork").append(Message.user("elsewhere"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "a.db"
    with holdfast.open(path, durability="process") as store:
        _write(store)
    return path.read_bytes()


@pytest.fixture(scope="module")
def truth(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> Content:
    content = content_of(put(tmp_path_factory.mktemp("truth") / "a.db", sound))
    assert content is not None
    return content


def _pages_of(data: bytes, kind: str, path: Path) -> list[int]:
    """The numbers of the pages, from 0 on, that have no rows but lead to others; or the schema."""
    connection = apsw.Connection(str(put(path, data)))
    where = {
        "schema": "name = 'sqlite_schema'",
        "interior": "pagetype = 'internal' AND name <> 'sqlite_schema'",
        "leaf": "pagetype = 'leaf' AND name IN ('messages', 'heads', 'turns', 'sessions')",
    }[kind]
    query = f"SELECT pageno - 1 FROM dbstat WHERE {where} ORDER BY pageno"  # noqa: S608
    found: list[int] = [page for (page,) in connection.execute(query)]
    connection.close()
    return found


def _salvaged(folder: Path, data: bytes) -> tuple[SalvageReport, Content]:
    folder.mkdir()
    path, target = put(folder / "a.db", data), folder / "b.db"
    report = salvage(path, target, copy_store)
    assert path.read_bytes() == data, "the damaged file was written to"
    assert verify_file(target) == []
    content = content_of(target)
    assert content is not None
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".")]
    return report, content


def _words(content: Content) -> set[str]:
    """The words of the messages that are as they were."""
    bodies = [body for *_, body in messages_of(content) if b"-end" in body]
    return {bytes(body).split(b"lorem ipsum ")[-1][:15].decode() for body in bodies}


def _readable_words(data: bytes) -> set[str]:
    numbers = ((session, n) for session in range(4) for n in range(1, 31))
    return {word for word in (_word(*number) for number in numbers) if word.encode() in data}


# ---------------------------------------------------------------------------- header and schema


def test_a_flipped_byte_of_the_header_costs_no_message(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    chance = random.Random(5)
    places = sorted({*range(0, HEADER, 7), 16, 17, 20, 31, 47, 59, 63, 71, 100, 103, 105})
    for at in places:
        bit = 1 << chance.randrange(8)
        report, content = _salvaged(tmp_path / str(at), flipped(sound, at, bit))
        assert carried(content) == carried(truth), (at, bit, report.damage)


def test_a_flipped_byte_of_the_schema_costs_no_message(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    """In the names of tables and columns, and in the numbers of their first pages."""
    chance = random.Random(8)
    pages = _pages_of(sound, "schema", tmp_path / "pages.db")
    places = [page * PAGE + chance.randrange(200, PAGE) for page in pages for _ in range(4)]
    renamed = [sound.index(b"CREATE TABLE heads") + 14, sound.index(b"updated_at   INT")]
    for at in [*renamed, *places]:
        report, content = _salvaged(tmp_path / str(at), flipped(sound, at, 1))
        assert carried(content) == carried(truth), (at, report.damage)


def test_a_lost_first_page_or_page_of_the_schema_costs_no_message(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    pages = _pages_of(sound, "schema", tmp_path / "pages.db")
    assert pages[0] == 0
    assert len(pages) > 2
    for page in pages:
        report, content = _salvaged(tmp_path / str(page), _without(sound, page))
        assert report.damage
        assert carried(content) == carried(truth), page


def test_a_lost_page_above_others_costs_no_message(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    pages = _pages_of(sound, "interior", tmp_path / "pages.db")
    assert pages
    for page in pages:
        report, content = _salvaged(tmp_path / str(page), _without(sound, page))
        assert report.damage
        assert messages_of(content) == messages_of(truth), page


def test_a_flipped_bit_above_a_cell_pointer_costs_no_message(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    """SQLite ignores the bits above the size of a page, and finds the row."""
    connection = apsw.Connection(str(put(tmp_path / "pages.db", sound)))
    query = "SELECT min(pageno) - 1 FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf'"
    page: int = connection.execute(query).get
    connection.close()
    changed = bytearray(sound)
    changed[page * PAGE + 8] ^= 0x20
    report, content = _salvaged(tmp_path / "flipped", bytes(changed))
    assert report.damage
    assert messages_of(content) == messages_of(truth)


def _without(data: bytes, *pages: int) -> bytes:
    changed = bytearray(data)
    for page in pages:
        changed[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return bytes(changed)


def test_a_message_is_salvaged_whatever_else_is_lost_if_its_page_is_whole(
    sound: bytes, tmp_path: Path
) -> None:
    """The header and a page in turn: what is left is found and numbered as it was."""
    for page in _pages_of(sound, "leaf", tmp_path / "pages.db")[::3]:
        data = _without(sound, 0, page)
        report, content = _salvaged(tmp_path / str(page), data)
        assert _words(content) == _readable_words(data), page
        assert report.messages >= len(_readable_words(data))


@pytest.mark.parametrize("part", [0.75, 0.9])
def test_a_truncated_file_without_a_header_keeps_what_is_left(
    sound: bytes, tmp_path: Path, part: float
) -> None:
    data = _without(sound, 0)[: int(len(sound) * part)]
    _, content = _salvaged(tmp_path / "cut", data)
    assert len(_readable_words(data)) > 10
    assert _words(content) >= _readable_words(data[: len(data) // PAGE * PAGE])


def test_no_history_gets_shorter_because_nothing_shows_where_its_end_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.storage.sqlite.repair.rebuild_messages._MAX_PLACEHOLDER_TAIL", 2)
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        store.session("s").append(*(Message.user(_word(0, n) * 100) for n in range(1, 31)))
    data = path.read_bytes()
    last = data.rindex(_word(0, 30).encode()) // PAGE
    _, content = _salvaged(tmp_path / "salvaged", _without(data, 0, last, last - 1))
    places = sorted(row[1] & 0xFFFFFFFF for row in content["messages"])
    assert places == list(range(1, 31))


@pytest.mark.parametrize("size", [512, 1024, 65536])
def test_a_file_with_other_pages_is_salvaged(
    sound: bytes, truth: Content, tmp_path: Path, size: int
) -> None:
    path = put(tmp_path / "a.db", sound)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode=DELETE; PRAGMA page_size={size}; VACUUM").fetchall()
    connection.close()
    data = path.read_bytes()
    _, content = _salvaged(tmp_path / "salvaged", bytes(100) + data[100:])
    assert carried(content) == carried(truth)


def test_what_is_only_in_the_log_is_salvaged_without_a_header(tmp_path: Path) -> None:
    """After a crash the log has newer versions of pages than the file."""
    path, crashed = tmp_path / "a.db", tmp_path / "crashed"
    crashed.mkdir()
    with holdfast.open(path) as store:
        store.session("s").append(*(Message.user(f"in the file {n}") for n in range(50)))
    with holdfast.open(path) as store:
        store.session("s").append(*(Message.user(f"in the log {n}") for n in range(50)))
        truth = content_of(path)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{crashed / path.name}{suffix}")
    damaged = crashed / path.name
    put(damaged, _without(damaged.read_bytes(), *range(2)))
    report = salvage(damaged, tmp_path / "b.db", copy_store)
    salvaged = content_of(tmp_path / "b.db")
    assert truth is not None
    assert salvaged is not None
    assert messages_of(salvaged) == messages_of(truth)
    assert report.messages == 100


# ------------------------------------------------------------------------ what is not a store


@pytest.mark.parametrize("head", [b"", b"SQLite format 3\0\x10\0\2\2\0@  "])
def test_what_has_no_row_of_a_store_is_refused_and_leaves_nothing(
    tmp_path: Path, head: bytes
) -> None:
    noise = random.Random(1).randbytes(200 * PAGE)
    path = put(tmp_path / "a.db", head + noise[len(head) :])
    with pytest.raises(Damaged, match=r"no readable row.*Restore a backup"):
        salvage(path, tmp_path / "b.db")
    assert not [file.name for file in tmp_path.iterdir() if "b.db" in file.name]


def test_another_programs_database_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE messages (place INTEGER PRIMARY KEY, id, turn, crc, body)")
    connection.execute("INSERT INTO messages VALUES (1, 'a', 1, 2, 'b'), (2, 'a', 1, 2, 'b')")
    connection.close()
    with pytest.raises(Damaged, match="no readable row"):
        salvage(path, tmp_path / "b.db")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.db"]
    path.chmod(0o600)
    with pytest.raises(StoreUnavailable, match="another program"):
        holdfast.open(path, readonly=True)


# ------------------------------------------------------------ the numbers that name the format


NUMBERS = {"the format": 63, "the format, far off": 60, "the application": 70}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_damaged_number_in_the_header_refuses_writes_and_is_salvaged(
    sound: bytes, truth: Content, tmp_path: Path, what: str
) -> None:
    path = put(tmp_path / "a.db", flipped(sound, NUMBERS[what], 1 << 4))
    assert any("the header" in found.what for found in verify_file(path))
    with pytest.raises(Damaged, match=r"header.*doctor --fix"):
        holdfast.open(path)
    with holdfast.open(path, readonly=True) as store:
        report = store.salvage(tmp_path / "b.db")
    assert any("the header" in found.what for found in report.damage)
    salvaged = content_of(tmp_path / "b.db")
    assert salvaged is not None
    assert carried(salvaged) == carried(truth)


def test_a_number_damaged_into_that_of_an_older_format_migrates_nothing(
    sound: bytes, tmp_path: Path
) -> None:
    """The steps behind it would be applied to tables that have them."""
    known = max(migrations.load())
    newer = next(n for n in range(known + 1, 999) if (n ^ known).bit_count() == 1)
    steps = {**migrations.load(), newer: "CREATE TABLE new (n)"}
    path = put(tmp_path / "a.db", sound)
    connection = apsw.Connection(str(path))
    connection.execute(steps[newer])
    connection.execute(f"PRAGMA user_version={known}")
    found = migrations.header_damage(connection, steps)
    connection.close()
    assert found is not None
    assert f"number {known}, but the tables are those of format {newer}" in found


@pytest.mark.parametrize("change", ["", "CREATE TABLE new (n)"])
def test_a_newer_format_is_not_taken_for_a_damaged_one(
    sound: bytes, tmp_path: Path, change: str
) -> None:
    """By other tables, or by a number that no single bit makes of a known one."""
    known = migrations.load()
    numbers = range(max(known) + 1, 999)
    newer = next(n for n in numbers if change or all((n ^ k).bit_count() > 1 for k in known))
    path = put(tmp_path / "a.db", sound)
    connection = apsw.Connection(str(path))
    connection.execute(f"{change}; PRAGMA user_version={newer}")
    connection.close()
    for readonly in (False, True):
        with pytest.raises(SchemaTooNew):
            holdfast.open(path, readonly=readonly)
    with pytest.raises(SchemaTooNew):
        salvage(path, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_formats_with_the_same_tables_have_numbers_that_no_flipped_bit_confuses() -> None:
    steps = migrations.load()
    for number, script in steps.items():
        connection = apsw.Connection(":memory:")
        for earlier in [other for known, other in steps.items() if known < number]:
            connection.execute(earlier)
        connection.execute(script)
        same = list(migrations.same_tables(connection, steps))
        assert number in same
        assert all((number ^ other).bit_count() != 1 for other in same)


# --------------------------------------------------------------------------------- conflicts


def test_of_two_rows_with_one_key_the_whole_one_stays_and_the_other_is_quarantined(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    """A page of turns is there twice, as if another page of the file had been written over."""
    page = sound.rindex(b'"host"') // PAGE
    spare = _pages_of(sound, "interior", tmp_path / "pages.db")[0]
    copy = bytearray(sound[page * PAGE : (page + 1) * PAGE])
    at = copy.rindex(b'"host"')
    copy[at : at + 6] = b'"hose"'
    data = bytearray(sound)
    data[spare * PAGE : (spare + 1) * PAGE] = copy
    report, content = _salvaged(tmp_path / "salvaged", bytes(data))
    assert content["turns"] == truth["turns"]
    assert any("conflicts with other rows" in found.what for found in report.damage)


def test_a_page_scan_reads_each_page_a_few_times(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    real = page_scan.Pages.read

    def read(self: page_scan.Pages, number: int) -> bytes:
        reads.append(number)
        return real(self, number)

    monkeypatch.setattr(page_scan.Pages, "read", read)
    _salvaged(tmp_path / "salvaged", _without(sound, 0))
    assert len(reads) < 5 * len(sound) // PAGE
