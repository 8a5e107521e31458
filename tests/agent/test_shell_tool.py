"""Commands: their environment, their output, and that no process of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.tools.protocol import Output
from holdfast.agent.tools.shell import command_tools, scrub_environment
from holdfast.values import JSON
from tests.agent.tools import Desk, refusal

_PATIENCE = 30.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "work").mkdir()
    made = Desk(command_tools(str(tmp_path / "work"), timeout=60), tmp_path / "work")
    yield made
    made.close()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for_file(path: Path) -> str:
    deadline = time.monotonic() + _PATIENCE
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


# ------------------------------------------------------------------------------- what they give


def test_both_outputs_are_given_in_order_with_the_exit_code(desk: Desk) -> None:
    said = desk.run("run_command", command="echo one; echo two >&2; echo three")
    assert said == "one\ntwo\nthree\n[exit code 0]"
    assert desk.run("run_command", command="printf x") == "x\n[exit code 0]"
    assert desk.run("run_command", command="true") == "[exit code 0]"
    assert desk.fail("run_command", command="echo no; exit 3") == "no\n[exit code 3]"
    assert desk.fail("run_command", command="kill -9 $$") == "[terminated by SIGKILL]"
    assert "[exit code 127]" in desk.fail("run_command", command="no-such-program-here")


def test_output_is_text_whatever_it_is(desk: Desk) -> None:
    said = desk.run("run_command", command=r"printf 'f\374r \000 \303\274'")
    assert said == "f\ufffdr \ufffd ü\n[exit code 0]"


def test_commands_run_in_the_root(desk: Desk) -> None:
    assert desk.run("run_command", command="pwd").startswith(os.path.realpath(desk.cwd) + "\n")


def test_there_is_nothing_to_read_from_and_no_terminal(desk: Desk) -> None:
    assert desk.run("run_command", command="cat; tty; true") == "not a tty\n[exit code 0]"
    # A program that wants a password, or draws on the screen, asks for this one.
    assert "yes" not in desk.run("run_command", command="(: </dev/tty) 2>/dev/null && echo yes; :")


def test_a_command_does_not_take_what_is_typed_for_us(desk: Desk) -> None:
    reading, writing = os.pipe()
    before = os.dup(0)
    try:
        os.write(writing, b"typed\n")
        os.dup2(reading, 0)
        assert desk.run("run_command", command="head -n 1") == "[exit code 0]"
    finally:
        os.dup2(before, 0)
        for fd in (before, reading, writing):
            os.close(fd)


def test_more_output_than_the_limit_is_dropped_and_the_command_goes_on(tmp_path: Path) -> None:
    desk = Desk(command_tools(str(tmp_path), max_output=100_000), tmp_path)
    command = "head -c 1000000 /dev/zero | tr '\\0' x; touch done"
    said = desk.run("run_command", command=command)
    assert said == "x" * 100_000 + "\n[900,000 more bytes of output were dropped]\n[exit code 0]"
    assert (tmp_path / "done").exists()
    desk.close()


@pytest.mark.parametrize("command", ["", "  \n", "a\0b", "x" * 200_000])
def test_what_is_no_command_is_neither_asked_for_nor_run(desk: Desk, command: str) -> None:
    assert "command" in desk.fail("run_command", command=command)
    assert "command" in refusal(lambda: desk.asks("run_command", command=command))


def test_the_question_shows_the_command_as_it_is_and_where(desk: Desk) -> None:
    asked = desk.asks("run_command", command="rm -rf *  # ok?")
    assert asked == f"run in {os.path.realpath(desk.cwd)}\n$ rm -rf *  # ok?"


# ---------------------------------------------------------------------------------- environment


SECRETS = {
    "OPENAI_API_KEY": "canary-1",
    "ANTHROPIC_API_KEY": "canary-2",
    "AWS_SECRET_ACCESS_KEY": "canary-3",
    "GITHUB_TOKEN": "canary-4",
    "HOLDFAST_URL": "canary-5",
    "SSH_AUTH_SOCK": "canary-6",
    "https_proxy": "http://user:canary-7@proxy",
    "PYTHONSTARTUP": "canary-8",
    "LD_PRELOAD": "canary-9",
    "ENV": "canary-10",
}


def test_a_command_sees_no_secret_of_ours(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_TIME", "C")
    seen = desk.run("run_command", command="env; cat /proc/self/environ 2>/dev/null || true")
    assert "canary" not in seen
    assert "LC_TIME=C" in seen
    assert f"HOME={os.environ['HOME']}" in seen
    assert "TERM=dumb" in seen


def test_what_is_passed_on_is_known_by_name() -> None:
    given = {
        "HOME": "/h",
        "PATH": "/bin:.::bin:/usr/bin",
        "http_proxy": "http://p",
        "A": "1",
        "B": "2",
    }
    seen = scrub_environment(given, keep=["B"])
    assert seen["PATH"] == "/bin:/usr/bin"
    assert seen["http_proxy"] == "http://p"
    assert (seen["HOME"], seen["B"]) == ("/h", "2")
    assert "A" not in seen
    assert scrub_environment({})["PATH"]


def test_a_program_in_the_workspace_does_not_pass_for_another(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Path(desk.cwd) / "ls"
    fake.write_text("#!/bin/sh\necho fooled\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    assert "fooled" not in desk.run("run_command", command="ls")


def test_no_file_of_ours_is_open_in_a_command(desk: Desk, tmp_path: Path) -> None:
    with (tmp_path / "ours.db").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        assert "ours.db" not in desk.run("run_command", command="ls -l /proc/self/fd || true")


# --------------------------------------------------------------------------------------- ending


@linux
def test_a_command_that_takes_too_long_is_ended_and_what_it_said_is_kept(desk: Desk) -> None:
    began = time.monotonic()
    said = desk.fail(
        "run_command", command="echo begun; sleep 100; echo never", timeout_seconds=0.2
    )
    assert said == "begun\n[timed out: killed after 0.2 s]"
    assert time.monotonic() - began < 30


async def cancelled(desk: Desk, ready: Path, **arguments: JSON) -> float:
    """Begin a command, cancel it when it is at work; give how long that took."""
    task = asyncio.create_task(desk.output("run_command", **arguments))
    await asyncio.to_thread(wait_for_file, ready)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - began


@linux
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_cancelled_command_is_gone_with_all_it_started(desk: Desk, stubborn: bool) -> None:
    """Also one that does not listen to being asked."""
    ready = Path(desk.cwd) / "ready"
    trap = "trap '' TERM; " if stubborn else ""
    command = f"{trap}(sleep 1000 & sleep 1000 & echo $$ $! >ready; wait); wait"
    took = asyncio.run(cancelled(desk, ready, command=command))
    wait_until_gone(*map(int, ready.read_text().split()))
    assert took < 5  # A second at most, on a machine that has nothing else to do.


@linux
def test_a_command_may_clean_up_when_it_is_cancelled(desk: Desk) -> None:
    ready = Path(desk.cwd) / "ready"
    command = "trap 'echo clean >cleaned; exit' TERM; echo x >ready; while :; do sleep 0.01; done"
    asyncio.run(cancelled(desk, ready, command=command))
    assert (Path(desk.cwd) / "cleaned").read_text() == "clean\n"


@linux
def test_cancelling_twice_still_ends_it(desk: Desk) -> None:
    ready = Path(desk.cwd) / "ready"

    async def twice() -> None:
        command = "trap '' TERM; echo $$ >ready; sleep 1000 & wait; sleep 1000"
        task = asyncio.create_task(desk.output("run_command", command=command))
        await asyncio.to_thread(wait_for_file, ready)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(twice())
    wait_until_gone(int(ready.read_text()))


@linux
def test_what_a_command_leaves_running_is_ended_with_it(desk: Desk) -> None:
    said = desk.run("run_command", command="sleep 1000 & echo $! ")
    pid, note, code = said.split("\n")
    assert note == "[background processes it left running were killed]"
    assert code == "[exit code 0]"
    wait_until_gone(int(pid))
    said = desk.run("run_command", command="sleep 1000 >/dev/null 2>&1 & echo $!")
    wait_until_gone(int(said.split("\n")[0]))


@linux
def test_one_that_got_away_does_not_hold_anybody_up(desk: Desk) -> None:
    """A process in a session of its own is not of the group; it keeps the pipe, and no more."""
    began = time.monotonic()
    said = desk.run("run_command", command="setsid sleep 60 & echo $!; sleep 0.2")
    pid = int(said.split("\n")[0])
    try:
        assert time.monotonic() - began < 30
        assert said.endswith("[exit code 0]")
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_commands_run_together(desk: Desk) -> None:
    async def together() -> list[Output]:
        # Each waits for the other: one after the other would take for ever.
        one = "touch a; while [ ! -e b ]; do sleep 0.01; done; echo one"
        two = "touch b; while [ ! -e a ]; do sleep 0.01; done; echo two"
        return await asyncio.gather(
            *(desk.output("run_command", command=c, timeout_seconds=60) for c in (one, two))
        )

    said = [output.content for output in asyncio.run(together())]
    assert said == ["one\n[exit code 0]", "two\n[exit code 0]"]


def test_a_command_in_a_loop_of_another_thread(desk: Desk) -> None:
    """The sync agent has its loop in a thread of its own."""

    async def elsewhere() -> str:
        return await asyncio.to_thread(desk.run, "run_command", command="echo there")

    assert asyncio.run(elsewhere()) == "there\n[exit code 0]"
