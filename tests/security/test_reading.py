"""Secrets, the home directory and other projects' sessions are not read without a yes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from tests.security.workplace import Workplace

_CANARY = "canary-7f3a"
_SECRETS = (
    ".env",
    ".ENV",
    ".env.production",
    ".ssh/config",
    "deploy/id_rsa",
    "certs/Server.PEM",
    ".aws/credentials",
    ".config/gcloud/x.db",
    ".docker/config.json",
    ".netrc",
)


def _call(name: str, **arguments: str) -> str:
    return f"call {name} {json.dumps(arguments)}"


def _plant(root: Path) -> None:
    for name in (*_SECRETS, ".env.example"):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{'a template' if name.endswith('example') else _CANARY}\n")
    (root / "plain.txt").write_text("a plain text\n")
    (root / "innocent.txt").symlink_to(".env")
    (root / "folder").symlink_to(".ssh")


def test_a_secret_is_not_read_by_its_name_or_through_a_link(user: Workplace) -> None:
    _plant(user.work)
    calls = [_call("read_file", path=path) for path in (*_SECRETS, "innocent.txt", "./x/../.env")]
    calls += [_call("list_files", path="folder"), _call("list_files", path=".ssh")]
    calls += [_call("search_files", text="canary", path=path) for path in (".ssh", ".env")]
    ran = user.holdfast("run", "\n".join(calls))
    assert ran.code == 0, ran.err
    assert ran.err.count("not allowed: ") == len(calls)
    assert "which may hold secrets" in ran.err
    assert _CANARY not in user.sent()


def test_a_secret_is_not_guessed_by_editing_it(user: Workplace) -> None:
    """Whether a text is in the file, and where, is said to nobody who may not read it."""
    user.configure("[approve]\nwrites = true\n")
    _plant(user.work)
    (user.home / "notes.txt").write_text(_CANARY)
    guesses = ("canary-7", "canary-8", "a", "")
    calls = [
        _call("edit_file", path=path, old=old, new="x")
        for path in (".env", "certs/Server.PEM", "notes.txt")
        for old in guesses
    ]
    for cwd, count in ((user.work, 8), (user.home, 12)):
        ran = user.holdfast("run", "\n".join(calls), cwd=cwd)
        assert ran.err.count("not allowed: ") == count
        assert _CANARY in (user.work / "certs/Server.PEM").read_text()
    said = user.provider.replies()[-1]["messages"]
    results = {message["content"] for message in said if message["role"] == "tool"}
    assert len(results) == 1


def test_a_search_leaves_secrets_out_and_counts_them(user: Workplace) -> None:
    _plant(user.work)
    ran = user.holdfast("run", _call("search_files", text="a"))
    assert "plain.txt:1: a plain text" in ran.out
    assert ".env.example:1: a template" in ran.out
    assert "[10 left out that may hold secrets" in ran.out
    assert "not allowed" not in ran.err
    assert _CANARY not in user.sent()


@pytest.mark.parametrize("directory", ["home", "above"])
def test_in_the_home_directory_every_read_is_asked_for(user: Workplace, directory: str) -> None:
    where = user.home if directory == "home" else user.home.parent
    (where / "notes.txt").write_text(_CANARY)
    calls = [_call("read_file", path="notes.txt"), _call("search_files", text="canary")]
    ran = user.holdfast("run", "\n".join([*calls, _call("list_files")]), cwd=where)
    assert ran.err.count("not allowed: ") == 3
    assert _CANARY not in user.sent()


def test_what_the_program_keeps_is_not_read(user: Workplace) -> None:
    """Its stores and what lies beside them, its configuration and its state."""
    user.environment["HOLDFAST_URL"] = str(user.work / "agent.db")
    user.environment["XDG_STATE_HOME"] = str(user.work / "state")
    user.environment["HOLDFAST_CONFIG"] = str(user.work / "mine.toml")
    kept = ("agent.db.before-2", "agent.db-search", "state/holdfast/other.db", "mine.toml")
    for name in kept:
        (user.work / name).parent.mkdir(parents=True, exist_ok=True)
        (user.work / name).write_text(f"# {_CANARY}\n")
    calls = [_call("read_file", path=name) for name in kept]
    ran = user.holdfast("run", "\n".join([*calls, _call("search_files", text="canary")]))
    assert ran.err.count("not allowed: ") == len(kept)
    assert _CANARY not in user.sent()


def test_the_user_is_asked_and_always_covers_no_secret(user: Workplace) -> None:
    _plant(user.home)
    with user.chat("--new", cwd=user.home) as chat:
        chat.wait_ready()
        chat.enter(_call("read_file", path="plain.txt"))
        chat.wait_for("read plain.txt", "a always: read_file")
        chat.type("a\r")
        chat.wait_for("The tool said: a plain text")
        chat.wait_ready()
        chat.enter(_call("read_file", path=".env"))
        chat.wait_for("read .env, which may hold secrets", "allow it? y yes · n no")
        chat.type("n\r")
        chat.wait_for("The tool said: [error] not run")
        assert chat.leave() == 0
    assert _CANARY not in user.sent()


@pytest.mark.parametrize("allowed", ["--yes", "approve.reads"])
def test_the_user_can_allow_it(user: Workplace, allowed: str) -> None:
    _plant(user.work)
    calls = [_call("read_file", path=".env"), _call("search_files", text="canary", pattern="*.PEM")]
    if allowed != "--yes":
        user.configure("[approve]\nreads = true\n")
    ran = user.holdfast("run", "\n".join(calls), *(["--yes"] if allowed == "--yes" else []))
    assert "not allowed" not in ran.err
    assert "certs/Server.PEM:1: " in ran.out
    (user.work / "holdfast.toml").write_text("[approve]\nreads = true\n")
    assert "may not set approve.reads" in user.holdfast("run", "hello").err


def test_the_model_sees_the_sessions_of_this_directory(user: Workplace) -> None:
    with holdfast.open(user.store) as store:
        store.session("theirs", cwd=str(user.elsewhere)).append(Message.user(f"walrus {_CANARY}"))
        store.session("ours", cwd=str(user.work)).append(Message.user("walrus of ours"))
    calls = [_call("session_search", query="walrus"), _call("session_read", session="theirs")]
    user.holdfast("run", "\n".join(calls))
    assert "walrus of ours" in user.sent()
    assert "there is no session 'theirs'" in user.sent()
    assert _CANARY not in user.sent()
    user.configure('[tools]\nsessions = "all"\n')
    user.holdfast("run", "\n".join(calls))
    assert _CANARY in user.sent()
