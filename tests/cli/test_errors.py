"""What goes wrong is one line, a hint, and an exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.cli.errors import exit_code, hint_for, what_happened
from holdfast.values import Head
from tests.cli.shell import HOSTILE, RAW, Shell


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["ls", "--nonsense"], 2, "No such option"),
        (["ls", "--limit", "0"], 2, "0 is not in the range"),
        (["show"], 2, "Missing argument 'REF'"),
        (["show", ""], 2, "an empty name cannot name a session"),
        (["show", "support-42", "--raw", "--json"], 2, "exclude each other"),
        (["recover"], 2, "Name one session, or pass --all"),
        (["recover", "support-42", "--all"], 2, "Name one session, or pass --all"),
        (["append", "support-42", "x", "--role", "tool"], 2, "'tool' is not one of"),
        (["append", "k" * 5000, "x"], 2, "1 to 4096 bytes"),
        (["ls", "--store", "mysql://there"], 2, "no backend for 'mysql'"),
        (["show", "nobody"], 3, "no session matches 'nobody'"),
        (["append", "--no-create", "nobody", "x"], 3, "no session matches 'nobody'"),
        (["log", "nobody"], 3, "no session matches 'nobody'"),
        (["recover", "nobody"], 3, "no session matches 'nobody'"),
        (["ls", "--store", "/dev/null"], 5, "/dev/null is not a regular file"),
        (["append", "a", "x", "--store", "/dev/null"], 5, "/dev/null is not a regular file"),
    ],
)
def test_an_error_is_a_line_and_a_hint(
    talked: Shell, arguments: list[str], code: int, said: str
) -> None:
    """Nothing on standard output, what happened and what helps on standard error."""
    ran = talked.run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    [what, hint] = ran.err.splitlines()
    assert what.startswith("holdfast: ")
    assert said in what
    assert hint.startswith("    hint: ")


def test_an_error_in_json_is_a_line_of_json(talked: Shell) -> None:
    """On standard error, so that standard output stays parseable."""
    ran = talked.run("show", "nobody", "--json")
    assert (ran.code, ran.out) == (3, "")
    assert json.loads(ran.err) == {
        "error": "SessionNotFound",
        "message": "no session matches 'nobody'",
        "hint": "`holdfast ls` lists the sessions, with --trashed those in the trash",
        "exit_code": 3,
    }


def test_an_ambiguous_name_lists_what_it_may_be(shell: Shell) -> None:
    """Two sessions with one title: neither is chosen."""
    with holdfast.open(shell.store) as store:
        ids = {store.create(title="twins").id for _ in range(2)}
    ran = shell.run("show", "twins")
    assert ran.code == 3
    assert all(id in ran.err for id in ids)


def test_candidates_are_told_apart(shell: Shell) -> None:
    """Each on a line, with key, title or first words, and when it was written to; in JSON too."""
    with holdfast.open(shell.store) as store:
        first = store.session("first key", title="Twins")
        second = store.create(title="TWINS")
        first.append(holdfast.Message.user("Hello"))
        for session in (first, second):
            session.update(pinned=True)
    for ref in ("twins", "@pinned"):
        ran = shell.run("show", ref)
        assert (ran.code, ran.out) == (3, "")
        what, *lines, hint = ran.err.splitlines()
        ids = f"{first.id}, {second.id}"
        assert what == f"holdfast: {ref!r} matches several sessions: {ids}; name one by its id"
        cells = [re.split(r"  +", line.strip()) for line in lines]
        assert [cell[0::2] for cell in cells] == [
            [first.id, "first key: Twins"],
            [second.id, "TWINS"],
        ]
        assert all(re.fullmatch(r"just now|\d+ s ago", cell[1]) for cell in cells)
        assert hint.startswith("    hint: ")
        said = json.loads(shell.run("show", ref, "--json").err)
        assert said["error"] == "AmbiguousRef"
        assert [(c["id"], c["title"], c["preview"]) for c in said["candidates"]] == [
            (first.id, "Twins", "Hello"),
            (second.id, "TWINS", None),
        ]


def test_a_hostile_candidate_does_no_harm(shell: Shell) -> None:
    """What its title holds comes out as escapes."""
    with holdfast.open(shell.store) as store:
        for _ in range(2):
            store.create(title=HOSTILE).update(pinned=True)
    ran = shell.run("show", "@pinned")
    assert ran.code == 3
    assert not RAW & set(ran.err)
    assert "gnp" in ran.err


@pytest.mark.parametrize("what", ["garbage", "half"])
def test_a_damaged_store_is_never_an_empty_list(talked: Shell, what: str) -> None:
    """Unreadable is an error; the file is left as it is."""
    data = talked.store.read_bytes()
    wreck = b"not a database " * 500 if what == "garbage" else data[: len(data) // 2]
    talked.store.write_bytes(wreck)
    for command in (["ls"], ["show", "support-42"], ["append", "support-42", "x"], ["log"]):
        ran = talked.run(*command)
        assert (ran.code, ran.out) == (5, "")
        assert len(ran.err.splitlines()) == 2
    assert talked.store.read_bytes() == wreck


def test_a_full_disk_is_said(talked: Shell) -> None:
    """Output that cannot be written is no success."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("wb") as full, talked.start("ls", stdout=full.fileno()) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (5, b"holdfast: No space left on device\n")


@pytest.mark.parametrize("arguments", [["show", "support-42"], ["--help"], ["ls", "--json"]])
def test_a_reader_that_went_away_ends_the_command_quietly(
    talked: Shell, arguments: list[str]
) -> None:
    """As `holdfast show … | head -1` does."""
    reading, writing = os.pipe()
    os.close(reading)
    with talked.start(*arguments, stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


def test_ctrl_c_ends_with_130(talked: Shell) -> None:
    """While it waits for what comes next."""
    talked.environment["PYTHONUNBUFFERED"] = "1"
    with talked.start("log", "-f", "-n", "1", "support-42") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_a_terminal_without_unicode_gets_escapes(talked: Shell) -> None:
    """What an encoding lacks is no reason to stop."""
    talked.environment["PYTHONIOENCODING"] = "ascii"
    talked.ok("append", "support-42", "żółw")
    assert "\\u017c\\xf3\\u0142w" in talked.ok("show", "support-42")


_ERRORS = [
    errors.SessionNotFound("no session matches 'x'; store.sessions() lists them."),
    errors.AmbiguousRef("'x' matches several sessions: a, b; use more characters of the id."),
    errors.HeadMoved(Head(1, 2), Head(1, 3)),
    errors.IdConflict("i1", 7),
    errors.KeyTaken("session a has this key; it stays. Restore it with keyless=True."),
    errors.Diverged({"a": "its branches differ", "b": "message 2 differs"}),
    errors.MessageNotFound("no message 2 on branch 1; session.branches() lists what there is."),
    errors.StoreUnavailable("the store cannot be used now; nothing was changed. Try again."),
    errors.Damaged("unreadable. Run store.verify(), and store.salvage(to) to keep what can be."),
    errors.OutcomeUnknown("it may be stored."),
    errors.BadMessage("id: must be 1 to 4096 bytes long"),
    errors.TooLarge("too large"),
    errors.ModelMissing("local cannot be used here: its weights are not here"),
    errors.ModelFailed("gpt-9 answered 400: no"),
    errors.ContextTooLong("too long"),
    errors.BadConfig("holdfast.toml, line 3: unknown key x"),
    errors.HoldfastError("something new"),
]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_has_a_code_and_speaks_to_a_shell(error: errors.HoldfastError) -> None:
    """No line tells somebody at a shell to call a method."""
    assert exit_code(error) in {1, 2, 3, 4, 5, 6}
    said = what_happened(error)
    assert said
    for call in ("store.", "session.", "turn(", "expect=", "keyless="):
        assert call not in said
    assert hint_for(error)


def test_every_kind_of_error_has_an_exit_code() -> None:
    """Each class of the tree falls under one that is listed."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
    ]
    assert len(kinds) > 20
    listed = (
        errors.NotFound, errors.AmbiguousRef, errors.Conflict, errors.StorageError, errors.Invalid,
        errors.AgentError,
    )  # fmt: skip
    assert [k.__name__ for k in kinds if not issubclass(k, listed)] == ["HoldfastError"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(shell: Shell, closed: str) -> None:
    """A message is stored also when nobody can be told, and nothing is written elsewhere."""
    line = f'"{sys.executable}" -m holdfast append a hello {closed}'
    ran = subprocess.run(["/bin/sh", "-c", line], env=shell.environment, check=False, timeout=60)
    assert ran.returncode == 0
    assert shell.ok("show", "--raw", "a") == "hello\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("chat --model openai:m", 0), ("import -", 2), ("append a", 2), ("purge a", 2)],
)
def test_standard_input_that_is_closed_is_empty(shell: Shell, command: str, code: int) -> None:
    """Its descriptor is not that of a file which the command opens, and reads as what was typed."""
    shell.ok("append", "a", "hello")
    line = f'"{sys.executable}" -m holdfast {command} <&-'
    environment = {**shell.environment, "OPENAI_API_KEY": "none"}
    ran = subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (ran.returncode, b"Traceback" in ran.stderr) == (code, False), ran.stderr
