"""Malicious files are refused with a typed error, in little memory, and change nothing."""

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import Invalid, ReadOnly, TooLarge
from holdfast.transfer.format import BlobLine, encode_line
from tests.transfer.edits import change, find, put, sealed_text
from tests.transfer.views import shown


@pytest.fixture
def full() -> Iterator[Store]:
    """A store with data; reading a file does not depend on the backend."""
    with holdfast.open("memory:") as store:
        store.session("mine").append(Message.user("precious"))
        yield store


def _refused(store: Store, path: Path, error: type[Invalid], match: str) -> None:
    before = shown(store)
    with pytest.raises(error, match=match) as refused:
        store.import_(path)
    assert type(refused.value) is error
    assert shown(store) == before


def _zip() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/passwd", b"\0" * 1_000_000)
    return data.getvalue()


def _tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return data.getvalue()


_NOT_OURS: dict[str, bytes] = {
    "empty": b"",
    "nothing but a line": b"\n",
    "text": b"Dear diary,\n" * 10,
    "no line at all": b"x" * 100_000,
    "zeros": b"\0" * 100_000,
    "zip": _zip(),
    "gzip": gzip.compress(b'{"type":"holdfast","version":1}\n'),
    "tar": _tar(),
    "SQLite": b"SQLite format 3\0" + b"\0" * 100,
    "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\n",
    "another JSONL": b'{"type":"message","role":"user","content":"hi"}\n',
    "a list": b'["holdfast", 1]\n',
    "no version": b'{"type":"holdfast"}\n',
    "version of another kind": b'{"type":"holdfast","version":"1"}\n',
    "version nought": b'{"type":"holdfast","version":0}\n',
    "no checksum": b'{"type":"holdfast","version":1}\n',
    "deep": b"[" * 100_000 + b"\n",
    "byte order mark": b'\xef\xbb\xbf{"type":"holdfast","version":1}\n',
}


@pytest.mark.parametrize("data", _NOT_OURS.values(), ids=_NOT_OURS.keys())
def test_a_file_that_is_not_ours(full: Store, tmp_path: Path, data: bytes) -> None:
    """It is refused by its first line."""
    path = tmp_path / "in"
    path.write_bytes(data)
    _refused(full, path, Invalid, "nothing was imported")


def test_a_newer_version(full: Store, exported: Path) -> None:
    """Its content may be unknown to this version, so none of it is imported."""
    put(exported, 0, b'{"type":"holdfast","version":3,"new":"field"}\n')
    _refused(full, exported, Invalid, "newer Holdfast.*Update Holdfast")


def test_a_header_that_was_changed(full: Store, exported: Path) -> None:
    """Without a valid first line the file is not trusted."""
    put(exported, 0, exported.read_bytes().splitlines(keepends=True)[0].replace(b"20", b"30", 1))
    _refused(full, exported, Invalid, "line 1 .*does not match its checksum")


def _missing(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_missing, _folder, _pipe])
def test_what_is_no_file(full: Store, exported: Path, make: Callable[[Path], None]) -> None:
    """A pipe without a writer does not block."""
    make(exported)
    _refused(full, exported, Invalid, "nothing was imported")


def test_a_store_for_reading(exported: Path, tmp_path: Path) -> None:
    """It is refused before the file is read."""
    with holdfast.open(tmp_path / "r.db") as store:
        store.session("k")
    with holdfast.open(tmp_path / "r.db", readonly=True) as store:
        with pytest.raises(ReadOnly):
            store.import_(exported, trust=True)


# ---------------------------------------------------------------------------------------- bombs


@pytest.mark.parametrize("where", ["metadata", "rubbish"])
def test_deep_json(full: Store, exported: Path, where: str) -> None:
    """It is refused before it is parsed."""
    at = find(exported, type="message", branch=1, seq=2)
    deep = "[" * 300 + "]" * 300
    if where == "metadata":
        line = exported.read_bytes().splitlines()[at].decode()
        put(exported, at, sealed_text(line[:-18] + ',"metadata":{"x":' + deep + "}}"))
    else:
        put(exported, at, b"[" * 1_000_000 + b"\n")
    _refused(full, exported, TooLarge, f"line {at + 1} is nested more than")


def test_brackets_in_text_are_no_nesting(source: Store, target: Store, tmp_path: Path) -> None:
    """Brackets in the text of a message are valid."""
    text = '[{"' * 1_000 + "\\" * 7
    source.session("talk").append(Message.user(text, metadata={text: [text]}))
    source.export(tmp_path / "x.jsonl")
    assert target.import_(tmp_path / "x.jsonl", trust=True).damage == ()
    assert target.session("talk").messages()[-1].text == text


def test_data_as_deep_as_it_may_be(source: Store, target: Store, tmp_path: Path) -> None:
    """Data of the maximum depth can be exported and imported."""
    deep: holdfast.values.JSON = "x"
    for _ in range(198):
        deep = [deep]
    result = holdfast.ToolResult("c", (holdfast.Raw("r", [deep]),))
    source.session("talk").append(Message(role="tool", parts=(result,), metadata={"deep": deep}))
    source.export(tmp_path / "x.jsonl")
    assert target.import_(tmp_path / "x.jsonl", trust=True).damage == ()
    assert shown(target) == shown(source)


def test_few_lines_that_claim_many_messages(full: Store, exported: Path) -> None:
    """Two hundred bytes do not become four billion rows."""
    _claim(exported, 0, 1, {"seq": 2**32 - 1})
    _refused(full, exported, TooLarge, "claims .* messages, more than its size allows")


def test_a_fork_that_claims_a_long_history(full: Store, exported: Path) -> None:
    """Nor for a parent that is not in the file."""
    _claim(exported, 1, 0, {"parent_id": "a" * 16, "fork_seq": 2**32 - 2, "seq": 2**32 - 1})
    _refused(full, exported, TooLarge, "claims .* messages, more than its size allows")


def test_a_fork_of_more_than_there_is(exported: Path, target: Store) -> None:
    """It is skipped: its parent is in the file and ends earlier."""
    _claim(exported, 1, 0, {"fork_seq": 100, "seq": 101})
    report = target.import_(exported, trust=True)
    assert report.sessions == 1
    wanted = "the session was not imported: its branch 1 starts at a message that does not exist"
    assert wanted in [damage.what for damage in report.damage]
    assert target.verify() == []


def _claim(path: Path, session: int, branch: int, fields: dict[str, object]) -> None:
    """Change a branch in the last line of its session, which has precedence."""
    lines = path.read_bytes().splitlines()
    ends = [at for at, line in enumerate(lines) if line.startswith(b'{"type":"end"')]
    change(path, ends[session], lambda record: record["branches"][branch].update(fields))


def test_nothing_but_damage(full: Store, exported: Path) -> None:
    """A file with too many damaged lines is refused."""
    with exported.open("ab") as file:
        file.write(b"rubbish\n" * 10_001)
    _refused(full, exported, Invalid, "more than 10000 lines are damaged")


_IN_A_CHILD = """
import sys, holdfast

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

store = holdfast.open("memory:")
before = peak()
try:
    report = store.import_(sys.argv[1], trust=True)
    print(report.sessions, len(report.damage))
except holdfast.errors.TooLarge as error:
    print("TooLarge", "line 2" in str(error))
print(peak() - before)
"""


@pytest.mark.parametrize(("size", "said"), [(200 << 20, "0 2"), (600 << 20, "TooLarge True")])
def test_one_giant_line_is_never_held(exported: Path, tmp_path: Path, size: int, said: str) -> None:
    """Whether it is skipped or refused, memory does not grow with it."""
    header = exported.read_bytes().splitlines(keepends=True)[0]
    with exported.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)  # a hole: zeros that take no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_CHILD, exported],
        check=True,
        capture_output=True,
        text=True,
    )
    first, grown = done.stdout.splitlines()
    assert first == said
    assert int(grown) < 32 * 1024, "kilobytes"


# ------------------------------------------------------------------------------------ smuggling


def test_a_field_that_comes_twice(exported: Path, target: Store) -> None:
    """Neither the first nor the last value is used."""
    at = find(exported, type="message", branch=1, seq=1)
    line = exported.read_bytes().splitlines()[at].decode()[:-18]
    put(exported, at, sealed_text(line + ',"role":"system"}'))
    (damage, *_) = target.import_(exported, trust=True).damage
    assert damage.seq == 1
    assert target.session("talk").messages()[0].status == "damaged"


def test_a_field_that_comes_twice_in_metadata(exported: Path, target: Store) -> None:
    """Also deep inside."""
    at = find(exported, type="message", branch=1, seq=1)
    line = exported.read_bytes().splitlines()[at].decode()[:-18]
    put(exported, at, sealed_text(line + ',"metadata":{"a":{"b":1,"b":2}}}'))
    assert target.import_(exported, trust=True).damage[0].seq == 1


def test_null_in_metadata_is_no_value(exported: Path, target: Store) -> None:
    """As in `update`, where it removes a key; no store has one."""
    at = find(exported, type="session", key="talk")
    change(exported, at, lambda record: record.update(metadata={"gone": None, "kept": 1}))
    target.import_(exported, trust=True)
    assert target.session("talk", create=False).info().metadata == {"kept": 1}


@pytest.mark.parametrize("field", ["key", "title", "scope", "metadata", "goal", "pinned"])
def test_a_session_of_wrong_types(exported: Path, full: Store, field: str) -> None:
    """The line is damaged; its copy in the last line is used."""
    at = find(exported, type="session", key="talk")
    change(exported, at, lambda record: record.update({field: ["wrong"]}))
    report = full.import_(exported, trust=True)
    assert f"line {at + 1} is not a valid line" in [d.what for d in report.damage]
    assert full.session("talk", create=False).info().title == "A talk"
    assert full.verify() == []


_GADGETS: list[str] = [
    "../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "'; DROP TABLE sessions; --",
    "%s%n{0.__class__}",
    "$(touch pwned)",
    "x" * 4096,
    "con",
    "-",
    " ",
]


@pytest.mark.parametrize("name", _GADGETS)
def test_an_id_that_no_store_gave(
    exported: Path, full: Store, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of sessions are ours; a file that has others brings nothing, and nothing happens."""
    monkeypatch.chdir(tmp_path)
    before, there = shown(full), {path.name for path in tmp_path.iterdir()}
    _rename(exported, '"session":"', name)
    report = full.import_(exported, trust=True)
    assert report.sessions == 0
    assert {damage.what.partition(" ")[0] for damage in report.damage} == {"line", "2"}
    assert shown(full) == before
    assert {path.name for path in tmp_path.iterdir()} == there


@pytest.mark.parametrize("name", _GADGETS)
def test_a_key_is_only_a_name(
    exported: Path, target: Store, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are ids of messages: whatever they look like, they are stored as they are."""
    monkeypatch.chdir(tmp_path)
    there = {path.name for path in tmp_path.iterdir()}
    at = find(exported, type="message", branch=1, seq=1)
    for line in (find(exported, type="session", key="talk"), at):
        text = exported.read_bytes().splitlines()[line].decode()[:-18] + "}"
        field = "key" if line != at else "id"
        old = text.split(f'"{field}":"')[1].split('"')[0]
        text = text.replace(f'"{field}":"{old}"', f'"{field}":"{_escaped(name)}"')
        put(exported, line, sealed_text(text))
    report = target.import_(exported, trust=True)
    assert report.sessions == 2
    assert target.session(name, create=False).messages()[0].id == name
    assert target.verify() == []
    assert {path.name for path in tmp_path.iterdir()} == there


def _escaped(text: str) -> str:
    """Return the text as an export escapes it."""
    return encode_line(BlobLine(sha256=text, data=b"")).decode().split('"')[7]


def _rename(path: Path, field: str, name: str) -> None:
    lines = path.read_bytes().decode().splitlines()
    changed = []
    for line in lines[1:]:
        old = line.split(field)[1].split('"')[0] if field in line else None
        new = line if old is None else line.replace(f'{field}{old}"', f'{field}{_escaped(name)}"')
        changed.append(sealed_text(new[:-18] + "}"))
    path.write_bytes(lines[0].encode() + b"\n" + b"".join(changed))


def test_a_system_message_stays_what_it_was(exported: Path, source: Store, target: Store) -> None:
    """An import restores messages with their role and provenance."""
    said = Message.system("be kind", provenance=holdfast.values.Provenance("elsewhere", "7"))
    source.session("talk").append(said)
    source.export(exported, overwrite=True)
    target.import_(exported, trust=True)
    assert target.session("talk").messages()[-1] == source.session("talk").messages()[-1]
