"""Stored text never acts: not on a terminal, not in a pipe, not in JSON."""

import json

import pytest

from tests.cli.shell import HOSTILE, RAW, Shell, hostile_session

_COMMANDS = [
    ["ls"],
    ["show", "{id}"],
    ["show", "{id}", "--tools", "--thinking"],
    ["tree", "{id}"],
    ["stats"],
    ["log"],
    ["log", "{id}"],
    ["doctor"],
    ["doctor", "--fix"],
    ["append", "{id}", "hello"],
    ["recover", "{id}"],
    ["backup", "copy.db"],
]


@pytest.fixture
def hostile(shell: Shell) -> tuple[Shell, str]:
    """A store with a session that has hostile text wherever text can be."""
    return shell, hostile_session(shell.store)


def test_the_text_is_hostile_enough() -> None:
    """It holds a terminal's escapes, bidi controls, invisibles, and what no encoding can write."""
    assert set(HOSTILE) >= RAW
    with pytest.raises(UnicodeEncodeError):
        HOSTILE.encode()


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_nothing_hostile_reaches_a_pipe(
    hostile: tuple[Shell, str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """People see escapes, programs see JSON in plain ASCII."""
    shell, id = hostile
    monkeypatch.chdir(shell.store.parent)
    arguments = [part.format(id=id) for part in command]
    said = shell.ok(*arguments)
    assert not RAW & set(said)
    if command[0] in {"ls", "show"}:
        assert r"\x1b[2J\x1b]0;owned\x07\r\x9b31m\x7f\x00 \u202egnp\u2066x\u200e" in said
        assert "[bold red]markup[/]" in said
    if command[0] == "backup":
        arguments = ["backup", "again.db"]
    machine = shell.ok(*arguments, "--json")
    assert machine.isascii()
    assert all(c.isprintable() or c == "\n" for c in machine)
    for line in machine.splitlines() if command[0] == "log" else [machine]:
        json.loads(line)


def test_a_body_keeps_its_lines_and_a_field_does_not(hostile: tuple[Shell, str]) -> None:
    """So a title cannot fake a second row, and a message still has paragraphs."""
    shell, id = hostile
    assert "  one\n  \ttwo \\x1b[2J" in shell.ok("show", id)
    assert len(shell.ok("ls").splitlines()) == 2


def test_json_gives_back_exactly_what_was_stored(hostile: tuple[Shell, str]) -> None:
    """Escaped is not changed: a parser gets every character, lone surrogates included."""
    shell, id = hostile
    found = shell.json("show", id)
    assert found["session"]["title"] == HOSTILE
    assert found["session"]["metadata"] == {HOSTILE: HOSTILE}
    assert found["messages"][1]["parts"][1]["text"] == HOSTILE
    assert found["turns"][0]["error"] == f"RuntimeError: {HOSTILE}"


@pytest.mark.parametrize("colours", ["", "1"])
def test_errors_show_hostile_names_as_escapes(hostile: tuple[Shell, str], colours: str) -> None:
    """Also what was typed comes back safe to look at."""
    shell, _ = hostile
    shell.environment["FORCE_COLOR"] = colours
    typed = HOSTILE.replace("\0", "").replace("\ud800", "")
    for arguments in (
        ["show", typed],
        [typed],
        ["ls", f"--{typed}"],
        ["ls", "--store", f"/{typed}/x"],
    ):
        ran = shell.run(*arguments)
        assert ran.code in {2, 3} or "no store" in ran.out
        assert not RAW & set(ran.err)
        assert not (RAW - {"\x1b"}) & set(ran.out)
