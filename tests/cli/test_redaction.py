"""`holdfast export` and secrets: not in the file, listed, reviewed before there is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import File, Message, Thinking
from holdfast.transfer.redact.secrets import ALL_NAMES, CATALOGUE, DEFAULT_NAMES
from tests.cli.shell import HOSTILE, RAW, Shell
from tests.cli.test_terminal import look

KEY = "sk-" + "proj-" + "aB3dE5gH7jK9" * 4
MAIL = "nora.lund@fjord-mail.no"
MARK = "[redacted: openai key]"
BEGINS = f"sk-p… ({len(KEY)} characters)"
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def leaky(shell: Shell) -> Shell:
    """A session with a key in a text and one in signed thinking, an address, and an image."""
    with holdfast.open(shell.store) as store:
        session = store.session("leaky", title="Keys")
        session.append(
            Message.user([f"My key is {KEY}, mail {MAIL}", File("a.png", "image/png", b"\x89PNG")]),
            Message.assistant([Thinking(f"so {KEY} it is", "signature"), "Noted."]),
        )
    return shell


def test_an_export_is_redacted_and_tells_it(leaky: Shell, tmp_path: Path) -> None:
    """What was replaced and left out, one by one; what was not looked into, how many."""
    file = tmp_path / "out.jsonl"
    first, second, head, *table = leaky.ok("export", "-o", str(file)).splitlines()
    assert first.startswith(f"{file}: 1 session, 2 messages, 1 file, ")
    assert second == "1 secret replaced, 1 left out, 1 file not looked into"
    assert head.split() == ["SESSION", "MESSAGE", "WHERE", "FOUND", "BEGINS", "DONE"]
    id = leaky.json("show", "leaky")["session"]["id"]
    assert [" ".join(line.split()) for line in table] == [
        f"{id[:8]} 1 parts[0].text openai-key {BEGINS} replaced",
        f"{id[:8]} 2 parts[0].text openai-key {BEGINS} left out",
    ]
    text = file.read_text()
    assert KEY not in text
    assert f"My key is {MARK}, mail {MAIL}" in text


def test_a_whole_copy_has_to_be_asked_for(leaky: Shell, tmp_path: Path) -> None:
    """With --no-redact everything is there, and nothing is looked for."""
    file = tmp_path / "out.jsonl"
    assert leaky.ok("export", "-o", str(file), "--no-redact").count("\n") == 1
    assert file.read_text().count(KEY) == 2
    report = leaky.json("export", "-o", str(file), "--no-redact", "--force")
    assert report["review"] is None


def test_a_review_writes_nothing(leaky: Shell, tmp_path: Path) -> None:
    """It lists everything, also what would not be looked into; with or without a FILE."""
    before = sorted(tmp_path.iterdir())
    said = leaky.ok("export", "leaky", "--review")
    assert leaky.ok("export", "leaky", "--review", "-o", str(tmp_path / "out.jsonl")) == said
    *table, last = said.splitlines()
    assert last == "1 secret replaced, 1 left out, 1 file not looked into; nothing was written"
    assert [line.split()[1:3] for line in table[1:]] == [
        ["1", "parts[0].text"],
        ["1", "parts[1].data"],
        ["2", "parts[0].text"],
    ]
    assert "image/png, 4 bytes" in said
    assert sorted(tmp_path.iterdir()) == before
    assert KEY[:6] not in said


def test_a_review_that_finds_nothing(talked: Shell) -> None:
    """It says so."""
    assert talked.ok("export", "--review") == "nothing was found; nothing was written\n"
    assert talked.json("export", "--review") == {
        "replaced": 0,
        "left_out": 0,
        "not_looked_into": 0,
        "findings": [],
    }


def test_findings_for_programs(leaky: Shell, tmp_path: Path) -> None:
    """With --json, the same from a review and from an export."""
    review = leaky.json("export", "--review")
    report = leaky.json("export", "-o", str(tmp_path / "out.jsonl"))
    assert report["review"] == review
    assert (review["replaced"], review["left_out"], review["not_looked_into"]) == (1, 1, 1)
    message = leaky.json("show", "leaky")["messages"][0]
    assert review["findings"][0] == {
        "session_id": leaky.json("show", "leaky")["session"]["id"],
        "message_id": message["id"],
        "seq": 1,
        "where": "parts[0].text",
        "detector": "openai-key",
        "preview": BEGINS,
        "action": "replaced",
    }


def test_standard_output_is_for_the_lines(leaky: Shell) -> None:
    """What is not in them goes to standard error."""
    ran = leaky.run("export", "-o", "-")
    assert ran.code == 0
    assert [json.loads(line)["type"] for line in ran.out.splitlines()][-1] == "end"
    assert KEY not in ran.out
    assert ran.err.startswith("1 secret replaced, 1 left out, 1 file not looked into\nSESSION ")
    assert KEY not in ran.err


@pytest.mark.parametrize(
    ("names", "key", "mail"),
    [
        ([], False, True),
        (["email"], True, False),
        (["default", "email"], False, False),
        (["all"], False, False),
    ],
)
def test_detectors_are_chosen(
    leaky: Shell, tmp_path: Path, names: list[str], key: bool, mail: bool
) -> None:
    """Those that are named, and no others."""
    chosen = [word for name in names for word in ("--redact", name)]
    leaky.ok("export", "-o", str(tmp_path / "out.jsonl"), *chosen)
    text = (tmp_path / "out.jsonl").read_text()
    assert (KEY in text, MAIL in text) == (key, mail)


def test_the_detectors_are_listed(shell: Shell) -> None:
    """With what they find; no store is needed."""
    lines = shell.ok("export", "--detectors").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(ALL_NAMES)
    assert [line.split()[0] for line in lines[1:] if line.split()[1] == "yes"] == list(
        DEFAULT_NAMES
    )
    found = shell.json("export", "--detectors")
    assert [one["finds"] for one in found] == [one.finds for one in CATALOGUE]
    assert {one["name"]: one["mark"] for one in found}["openai-key"] == MARK
    assert not shell.store.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--redact", "nothing"], "'nothing' is not one of"),
        (["--no-redact", "--redact", "email"], "--no-redact cannot be combined"),
        (["--no-redact", "--review"], "--no-redact cannot be combined"),
    ],
)
def test_a_slip_writes_nothing(
    leaky: Shell, tmp_path: Path, arguments: list[str], said: str
) -> None:
    """A wrong word must not let a secret out."""
    file = tmp_path / "out.jsonl"
    ran = leaky.run("export", "-o", str(file), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert not file.exists()


def test_only_the_first_are_told(shell: Shell, tmp_path: Path) -> None:
    """A review lists them all."""
    with holdfast.open(shell.store) as store:
        text = "\n".join(f"password=Zx{n:03}qT9" for n in range(50))
        store.session("many").append(Message.user(text))
    said = shell.ok("export", "-o", str(tmp_path / "out.jsonl")).splitlines()
    assert said[1] == "50 secrets replaced"
    assert said[-1] == "and 30 more; --review lists them"
    assert len(said) == 2 + 1 + 20 + 1
    assert len(shell.ok("export", "--review").splitlines()) == 1 + 50 + 1


def test_hostile_places_are_shown_harmless(shell: Shell, tmp_path: Path) -> None:
    """Where a secret was is text that somebody stored."""
    with holdfast.open(shell.store) as store:
        store.session("k", metadata={HOSTILE: KEY})
    for arguments in (["--review"], ["-o", str(tmp_path / "out.jsonl")]):
        said = shell.ok("export", *arguments)
        assert "openai-key" in said
        assert not RAW & set(said)


def test_a_review_fits_a_terminal(leaky: Shell) -> None:
    """What is found where is seen at eighty columns."""
    said = _STYLES.sub("", look(leaky, "export", "--review", columns=80)).splitlines()
    assert all(len(line) <= 80 for line in said)
    assert [line.split()[3] for line in said[1:4:2]] == ["openai-key"] * 2


def test_an_import_tells_that_a_file_was_redacted(leaky: Shell, tmp_path: Path) -> None:
    """It is no whole copy, and says so."""
    safe, whole = tmp_path / "safe.jsonl", tmp_path / "whole.jsonl"
    leaky.ok("export", "-o", str(safe))
    leaky.ok("export", "-o", str(whole), "--no-redact")
    added = "1 session, 2 messages added\n"
    said = leaky.ok("import", "--trust", str(safe), "--store", str(tmp_path / "a.db"))
    assert said == f"{safe} (redacted): {added}"
    said = leaky.ok("import", "--trust", str(whole), "--store", str(tmp_path / "b.db"))
    assert said == f"{whole}: {added}"
    assert MARK in leaky.ok("show", "leaky", "--store", str(tmp_path / "a.db"))
    assert KEY in leaky.ok("show", "leaky", "--store", str(tmp_path / "b.db"))
