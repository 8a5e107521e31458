"""A stranger's store file: it can be read, and nothing in it acts before the user said yes."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

import holdfast
from tests.security.workplace import Workplace, strangers_store

_STRANGER = "OF-A-STRANGER"
_QUESTION = "continue it, now and from now on?"


@pytest.fixture
def foreign(user: Workplace) -> Path:
    return strangers_store(user.work / "plan.db")


def _untouched(path: Path) -> bool:
    """True if its session is as the stranger left it."""
    with holdfast.open(path, readonly=True) as store:
        session = store.get("plan")
        goal = session.info().goal
        return len(session.queued()) == 1 and len(session.messages()) == 3 and goal is not None


def test_run_does_not_continue_a_session_of_it(user: Workplace, foreign: Path) -> None:
    for arguments in (["--session", "plan"], ["--session", "@latest"]):
        ran = user.holdfast("run", *arguments, "go on", "--store", str(foreign))
        assert ran.code == 2
        assert "may be another person's" in ran.err
        assert "Nothing was sent or stored" in ran.err
        assert "--trust takes it for yours" in ran.err
    assert user.provider.requests == []
    assert _untouched(foreign)


def test_the_chat_asks_and_no_starts_a_new_conversation(user: Workplace, foreign: Path) -> None:
    with user.chat("--resume", "plan", "--store", str(foreign)) as chat:
        chat.wait_for(_QUESTION)
        chat.type("\r")
        chat.wait_for("a new conversation")
        chat.wait_ready()
        chat.enter("say mine")
        chat.wait_for("\n  mine")
        chat.wait_ready()
        chat.enter("/resume plan")
        chat.wait_until(lambda: _QUESTION in chat.bottom(6), "the question again")
        chat.type("\r")
        assert chat.leave() == 0
    assert _STRANGER not in user.sent()
    assert _untouched(foreign)


@pytest.mark.parametrize("start", [["--resume", "plan"], ["--fork", "plan"], ["--chain"], []])
def test_a_chat_without_a_user_continues_nothing(
    user: Workplace, start: list[str], tmp_path: Path
) -> None:
    foreign = strangers_store(tmp_path / "plan.db", user.work)
    ran = user.holdfast("chat", *start, "--store", str(foreign), stdin="hello\n")
    assert ran.code == 2
    assert "may be another person's" in ran.err
    assert user.provider.requests == []
    assert _untouched(foreign)


def test_reading_it_and_new_sessions_need_no_consent(user: Workplace, foreign: Path) -> None:
    option = ["--store", str(foreign)]
    for arguments in (
        ["ls"],
        ["show", "plan"],
        ["search", "hello"],
        ["export", "plan", "-o", "-"],
        ["tree", "plan"],
    ):
        assert user.holdfast(*arguments, *option).code == 0
    assert user.holdfast("run", "say mine", *option).out == "mine\n"
    assert user.holdfast("chat", "--new", *option, stdin="say too\n").code == 0
    assert _STRANGER not in user.sent()


def test_a_yes_is_remembered_for_this_store_and_not_for_its_path(
    user: Workplace, foreign: Path
) -> None:
    option = ["--session", "plan", "--store", str(foreign)]
    assert user.holdfast("run", "say one", *option, "--trust").code == 0
    assert _STRANGER in user.sent()
    known = user.state / "known_stores"
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    assert str(foreign) in known.read_text()
    assert user.holdfast("run", "say two", *option).code == 0
    for file in foreign.parent.glob("plan.db*"):
        file.unlink()
    strangers_store(foreign)
    assert user.holdfast("run", "say three", *option).code == 2
    moved = shutil.copy(foreign, user.work / "other.db")
    assert user.holdfast("run", "x", "--session", "plan", "--store", str(moved)).code == 2


def test_a_store_that_the_command_created_is_ones_own(user: Workplace) -> None:
    for number, first in enumerate((["run", "say one"], ["append", "k", "x"], ["new"])):
        option = ["--store", f"mine-{number}.db"]
        assert user.holdfast(*first, *option).code == 0
        assert user.holdfast("run", "say on", "--session", "@latest", *option).out == "on\n"


def test_the_default_and_the_configured_store_are_ones_own(user: Workplace) -> None:
    del user.environment["HOLDFAST_URL"]
    default = user.state / "holdfast.db"
    default.parent.mkdir(mode=0o700)
    for path in (default, user.home / "configured.db"):
        with holdfast.open(path) as store:
            store.session("k")
        option = ["--session", "k", "--store", os.path.relpath(path, user.work)]
        user.configure(f'[session]\nstore = "{path}"\n' if path != default else "")
        assert user.holdfast("run", "say on", *option).out == "on\n"
        assert user.holdfast("run", "say on", "--session", "k").out == "on\n"


def test_a_relative_name_in_the_environment_is_whatever_file_lies_there(
    user: Workplace, foreign: Path
) -> None:
    user.environment["HOLDFAST_URL"] = foreign.name
    assert user.holdfast("run", "go on", "--session", "plan").code == 2
    assert user.provider.requests == []


def test_a_copy_of_it_is_no_more_ones_own(user: Workplace, foreign: Path) -> None:
    assert user.holdfast("copy", str(foreign), "copy.db").code == 0
    assert user.holdfast("run", "go on", "--session", "plan", "--store", "copy.db").code == 2
    assert user.provider.requests == []


def test_a_strangers_store_was_copied_into_ones_own(user: Workplace, foreign: Path) -> None:
    """There its goal, queue and system messages would act without a question."""
    assert user.holdfast("new").code == 0
    ran = user.holdfast("copy", str(foreign), str(user.store))
    assert (ran.code, "may be another person's" in ran.err) == (2, True)
    with holdfast.open(user.store, readonly=True) as store:
        assert len(store.sessions().items) == 1
    assert user.holdfast("copy", "--trust", str(foreign), str(user.store)).code == 0
    assert user.holdfast("run", "say on", "--session", "plan").code == 0


def test_a_copy_of_ones_own_store_is_ones_own(user: Workplace) -> None:
    assert user.holdfast("new", "--key", "k").code == 0
    assert user.holdfast("copy", str(user.store), "copy.db").code == 0
    assert user.holdfast("run", "say on", "--session", "k", "--store", "copy.db").out == "on\n"


def test_a_yes_counts_where_it_cannot_be_remembered(user: Workplace, foreign: Path) -> None:
    """A directory, or nothing that can be written, in the place of the list."""
    (user.state / "known_stores").mkdir(parents=True)
    option = ["--resume", "plan", "--store", str(foreign)]
    assert user.holdfast("chat", "--trust", *option, stdin="say one\n").code == 0
    assert _STRANGER in user.sent()
    assert user.holdfast("chat", *option, stdin="say two\n").code == 2


def test_a_damaged_list_is_no_consent_and_loses_none(user: Workplace, foreign: Path) -> None:
    option = ["--session", "plan", "--store", str(foreign)]
    user.state.mkdir(parents=True)
    (user.state / "known_stores").write_bytes(b"\xff\x00\n")
    assert user.holdfast("run", "say one", *option).code == 2
    assert user.holdfast("run", "say one", *option, "--trust").code == 0
    assert user.holdfast("run", "say two", *option).code == 0
