"""Export and import: sessions as lines of JSON, whole, private, and told what was wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import File, Message
from tests.cli.shell import HOSTILE, Shell
from tests.cli.test_terminal import look


@pytest.fixture
def full(crashed: Shell) -> Shell:
    """A store with branches, forks, files, a crash, the trash, and hostile text."""
    with holdfast.open(crashed.store) as store:
        store.get("support-42").recover()
        session = store.session("full", title=HOSTILE)
        session.append(Message.user([File("f", "text/plain", b"data" * 40_000)]))
        session.append(Message.assistant("one"), Message.user("two"))
        session.undo()
        session.append(Message.user(HOSTILE))
        store.trash(session.fork(1, key="thrown").id)
    return crashed


def everything(store: Path) -> dict[str, Any]:
    """What all sessions hold, by id."""
    with holdfast.open(store, readonly=True) as opened:
        listed = [*opened.sessions(), *opened.sessions(trashed=True)]
        found = {info.id: (info, opened.get(info.id)) for info in listed}
        return {
            id: (
                info,
                session.turns(),
                session.branches(),
                [session.messages(branch=branch.number) for branch in session.branches()],
            )
            for id, (info, session) in found.items()
        }


def records(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# ------------------------------------------------------------------------------------------- export


def test_export_and_import_make_the_same_store(full: Shell, tmp_path: Path) -> None:
    """All that can be shown is the same, the trash included; a second time adds nothing."""
    file, other = tmp_path / "all.jsonl", tmp_path / "other.db"
    said = full.ok("export", "-o", str(file), "--no-redact")
    size = f"{file.stat().st_size / 1000:.1f} kB"
    assert said == f"{file}: 3 sessions, 14 messages, 1 file, {size}\n"
    said = full.ok("import", "--trust", str(file), "--store", str(other))
    assert said == f"{file}: 3 sessions, 14 messages added\n"
    before = everything(full.store)
    assert len(before) == 3
    assert everything(other) == before
    said = full.ok("import", "--trust", str(file), "--store", str(other))
    assert said == f"{file}: nothing added, 3 sessions there already\n"
    assert everything(other) == before


def test_an_export_is_private_and_readable_by_any_program(full: Shell, tmp_path: Path) -> None:
    """Mode 0600 whatever the umask; a record per line, each message once."""
    file = tmp_path / "all.jsonl"
    before = os.umask(0)
    try:
        full.ok("export", "-o", str(file))
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    lines = records(file.read_text())
    assert lines[0]["type"] == "holdfast"
    ids = [(line["session"], line["id"]) for line in lines if line["type"] == "message"]
    assert len(ids) == len(set(ids)) == 14


def test_export_takes_the_sessions_that_are_named(full: Shell, tmp_path: Path) -> None:
    """Also from the trash, each once, whatever they are called by."""
    file = tmp_path / "some.jsonl"
    report = full.json("export", "support-42", "A parcel", "thrown", "-o", str(file))
    assert (report["path"], report["sessions"]) == (str(file), 2)
    keys = {line.get("key") for line in records(file.read_text()) if line["type"] == "session"}
    assert {"support-42", "thrown"} <= keys
    assert "full" not in keys


def test_export_never_replaces_a_file_unasked(talked: Shell, tmp_path: Path) -> None:
    """With --force it does, and also then the file is nobody else's."""
    file = tmp_path / "mine"
    file.write_text("mine")
    ran = talked.run("export", "-o", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert f"{file} exists already" in ran.err
    assert "--force replaces" in ran.err
    assert file.read_text() == "mine"
    talked.ok("export", "-o", str(file), "--force")
    assert records(file.read_text())[0]["type"] == "holdfast"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", ["the store", "a directory", "nowhere", "a link"])
def test_export_refuses_places_that_are_none(talked: Shell, tmp_path: Path, where: str) -> None:
    """Also with --force; the store and whatever is there stay as they are."""
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    places = {
        "the store": talked.store,
        "a directory": tmp_path,
        "nowhere": tmp_path / "no" / "such",
        "a link": tmp_path / "link",
    }
    before = talked.store.read_bytes()
    ran = talked.run("export", "--force", "-o", str(places[where]))
    assert (ran.code, ran.out) == (2, "")
    assert "nothing was exported" in ran.err
    assert talked.store.read_bytes() == before
    assert (tmp_path / "target").read_text() == "mine"


def test_export_to_standard_output(full: Shell) -> None:
    """The same lines, and nothing but them."""
    lines = records(full.ok("export", "-o", "-"))
    assert lines[0]["type"] == "holdfast"
    assert sum(line["type"] == "message" for line in lines) == 14
    ran = full.run("export", "-o", "-", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert "standard output holds the export" in ran.err


@pytest.mark.parametrize("arguments", [["nobody", "-o", "x.jsonl"], ["nobody", "-o", "-"]])
def test_a_wrong_name_exports_nothing(
    talked: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """No file is begun."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    ran = talked.run("export", "support-42", *arguments)
    assert (ran.code, ran.out) == (3, "")
    assert "no session matches 'nobody'" in ran.err
    assert sorted(tmp_path.iterdir()) == before


def test_export_needs_to_know_where(talked: Shell) -> None:
    """A conversation does not land on a terminal by a slip."""
    ran = talked.run("export", "support-42")
    assert (ran.code, ran.out) == (2, "")
    assert "Missing option '--output'" in ran.err


def test_export_tells_what_it_could_not_read(talked: Shell, tmp_path: Path) -> None:
    """Exit code 1, and all the rest is in the file."""
    id = talked.json("show", "support-42")["session"]["id"]
    data = talked.store.read_bytes()
    assert b'"in Oslo"' in data
    talked.store.write_bytes(data.replace(b'"in Oslo"', b'"in 0slo"', 1))
    file = tmp_path / "all.jsonl"
    ran = talked.run("export", "-o", str(file))
    assert ran.code == 1
    assert f"holdfast: session {id}: message 3 does not match its checksum\n" in ran.err
    assert "1 part of the store could not be read; all the rest was exported" in ran.err
    assert "It is in Oslo." in file.read_text()


# ------------------------------------------------------------------------------------------- import


def exported(shell: Shell, tmp_path: Path) -> Path:
    file = tmp_path / "all.jsonl"
    shell.ok("export", "-o", str(file), "--no-redact")
    return file


def test_import_begins_a_store(talked: Shell, tmp_path: Path) -> None:
    """On a new machine there is none."""
    file, new = exported(talked, tmp_path), tmp_path / "new" / "agent.db"
    report = talked.json("import", "--trust", str(file), "--store", str(new))
    told = {"sessions": 1, "messages": 7, "skipped": [], "damage": [], "redacted": False}
    told |= {"trusted": True, "demotions": []}
    told |= {"records": 0, "store_records": 0, "records_left_out": 0}
    assert report == [{"file": str(file), "report": told}]
    assert new.stat().st_mode & 0o777 == 0o600


def test_import_tells_damaged_lines_and_imports_the_rest(talked: Shell, tmp_path: Path) -> None:
    """By file and line, on standard error, with exit code 1."""
    file, other = exported(talked, tmp_path), ["--store", str(tmp_path / "other.db")]
    text = file.read_text()
    file.write_text(text.replace("It is in Oslo.", "It is in 0slo."))
    bad = 1 + next(n for n, line in enumerate(text.splitlines()) if "is in Oslo" in line)
    ran = talked.run("import", "--trust", str(file), *other)
    assert (ran.code, ran.out) == (1, f"{file}: 1 session, 6 messages added\n")
    assert f"holdfast: {file}: line {bad} " in ran.err
    assert "1 part could not be read; all the rest is there" in ran.err
    messages = talked.json("show", "support-42", *other)["messages"]
    assert [m["status"] for m in messages].count("complete") == 6
    ran = talked.run(
        "import", "--trust", str(file), "--json", "--store", str(tmp_path / "third.db")
    )
    assert (ran.code, ran.err) == (1, "")
    assert len(json.loads(ran.out)[0]["report"]["damage"]) == 1


def test_import_of_a_file_that_broke_off(talked: Shell, tmp_path: Path) -> None:
    """What is whole is there, what is missing is told."""
    file, other = exported(talked, tmp_path), ["--store", str(tmp_path / "other.db")]
    file.write_bytes(file.read_bytes()[:-300])
    ran = talked.run("import", "--trust", str(file), *other)
    assert ran.code == 1
    assert "cut off" in ran.err
    assert talked.json("show", "support-42", *other)["session"]["messages"] == 7


@pytest.mark.parametrize("what", ["text", "database", "newer"])
def test_import_refuses_what_is_no_export(talked: Shell, tmp_path: Path, what: str) -> None:
    """And changes nothing."""
    file = exported(talked, tmp_path)
    first, _, rest = file.read_bytes().partition(b"\n")
    newer = first.replace(b'"version":2', b'"version":99') + b"\n" + rest
    data = {"text": b"hello\n", "database": talked.store.read_bytes(), "newer": newer}
    file.write_bytes(data[what])
    before = everything(talked.store)
    ran = talked.run("import", "--trust", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert "nothing was imported" in ran.err
    assert everything(talked.store) == before


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_import_looks_for_all_files_first(talked: Shell, tmp_path: Path, name: str) -> None:
    """One that is not there stops all of them."""
    file, other = exported(talked, tmp_path), tmp_path / "other.db"
    ran = talked.run("import", "--trust", str(file), name, "--store", str(other))
    assert (ran.code, ran.out) == (2, "")
    assert name in ran.err
    assert not other.exists()


def test_import_reads_standard_input_and_several_files(full: Shell, tmp_path: Path) -> None:
    """Told one by one."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    full.ok("export", "-o", str(one), "support-42")
    full.ok("export", "-o", str(two), "full")
    piped = full.ok("export", "-o", "-").encode()
    said = full.ok(
        "import", "--trust", str(one), str(two), "-", "--store", str(tmp_path / "x"), stdin=piped
    )
    assert [line.partition(": ")[2] for line in said.splitlines()] == [
        "1 session, 10 messages added",
        "1 session, 4 messages added",
        "1 session, 0 messages added; 2 sessions there already",
    ]


def test_export_does_not_write_to_a_terminal(full: Shell) -> None:
    """Stored text could act there."""
    said = look(full, "export", "-o", "-")
    assert "Exports are not written to a terminal" in said
    assert "support-42" not in said


# ---------------------------------------------------------------------------------- while it lasts

_SLOW = """
import sys
from holdfast.cli.output import spinner
spinner._DELAY_S = {patience}
with spinner.spinner("writing \\x1b[2J" + "x" * 200) as progress:
    if progress is None:
        print("nobody looks")
    else:
        progress(1, 4)
        sys.stdin.read({until})
print("done")
"""


def look_at(shell: Shell, code: str, until: bytes) -> str:
    """Run some code on a terminal, with more on its input once it wrote this; give all it wrote."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=shell.environment,
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        assert process.stdin is not None
        os.close(theirs)
        said = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):
            while data := terminal.read(65536):  # Linux raises when the last writer is gone.
                said += data
                if until in said and not process.stdin.closed:
                    process.stdin.close()
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("long", [False, True])
def test_a_line_tells_what_takes_long(talked: Shell, long: bool) -> None:
    """On a terminal, after a while, in one line that fits; then it is gone."""
    code = _SLOW.format(patience=0.1 if long else 60, until=1 if long else 0)
    said = look_at(talked, code, b" s")
    *line, last = said.split("\r")
    assert last == "done\n"
    if not long:
        assert line == []
        return
    shown = [text for text in line if text.strip()]
    assert shown
    assert all(text.startswith(r"writing \x1b[2Jxxx") for text in shown)
    assert all(re.search(r" … 25 %, \d+ s *$", text) and len(text) < 80 for text in shown)
    assert line[-1].strip() == ""


def test_no_line_where_nobody_looks(talked: Shell) -> None:
    """A pipe stays clean."""
    ran = subprocess.run(
        [sys.executable, "-c", _SLOW.format(patience=0.1, until=0)],
        env=talked.environment,
        capture_output=True,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == (b"nobody looks\ndone\n", b"")
