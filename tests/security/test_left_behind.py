"""What a command leaves running ends with it, wherever it hides."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.provider import Provider
from tests.agent.test_shell_tool import wait_for_file, wait_until_gone
from tests.security.agent_program import AgentProgram, shell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

_PATIENCE = 60.0


@pytest.fixture
def program(tmp_path: Path) -> Iterator[AgentProgram]:
    """A process of its own: its children and its signals are what is tested."""
    with Provider() as provider:
        yield AgentProgram(tmp_path, provider)


def daemon(name: str) -> str:
    """A command that leaves a process with nothing of its own: no parent, session, files, names."""
    return (
        f"(env -i setsid /bin/sh -c 'echo $$ >{name}; exec sleep 1000' "
        "</dev/null >/dev/null 2>&1 &); "
        f"while [ ! -s {name} ]; do sleep 0.01; done"
    )


def pid_in(path: Path) -> int:
    return int(wait_for_file(path))


def test_a_daemon_ends_when_the_command_exits(program: AgentProgram) -> None:
    said, alive = program.run(
        shell(daemon("one")),
        shell("kill -0 $(cat one) && echo alive"),
        options=("--yes",),
    )
    assert said == "[background processes it left running were killed]\n[exit code 0]"
    assert "alive" not in alive
    wait_until_gone(pid_in(program.work / "one"))


def test_a_daemon_ends_when_the_command_takes_too_long(program: AgentProgram) -> None:
    seconds = 1
    while not (program.work / "one").exists():  # On a slow machine it takes longer to begin.
        program.configure(f"[tools]\ntimeout = {seconds}\n")
        [said] = program.run(shell(f"{daemon('one')}; sleep 1000"), options=("--yes",))
        assert "timed out" in said
        seconds *= 4
    wait_until_gone(pid_in(program.work / "one"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_daemon_ends_when_the_turn_is_cancelled(
    program: AgentProgram, number: signal.Signals
) -> None:
    name, arguments = shell(f"trap '' TERM; {daemon('one')}; echo x >ready; sleep 1000")
    program.provider.say_next({"calls": [{"name": name, "arguments": arguments}]})
    with program.start("run", "--yes", "go") as running:
        wait_for_file(program.work / "ready")
        running.send_signal(number)
        running.communicate(timeout=_PATIENCE)
    wait_until_gone(pid_in(program.work / "one"))


def test_commands_that_run_together_leave_each_other_alone(program: AgentProgram) -> None:
    """What the one leaves behind ends with the other at the latest."""
    first = f"while [ ! -s two ]; do sleep 0.01; done; {daemon('one')}; echo x >over"
    second = (
        f"{daemon('two')}; while [ ! -s over ]; do sleep 0.01; done; sleep 0.5; "
        "kill -0 $(cat two) && echo alive"
    )
    calls = [{"name": shell(c)[0], "arguments": shell(c)[1]} for c in (first, second)]
    program.provider.say_next({"calls": calls})
    _, said = program.run(options=("--yes",))
    assert said.startswith("alive\n")
    wait_until_gone(*(pid_in(program.work / name) for name in ("one", "two")))


_PROGRAM = f"""
import asyncio, subprocess, sys
from holdfast.agent.tools.containment import contain_commands
from holdfast.agent.tools.shell import RunningCommand
assert contain_commands()
own = [subprocess.Popen(["sleep", "1000"], start_new_session=new) for new in (False, True)]
async def command(text):
    running = RunningCommand(text, ".", {{"PATH": "/usr/bin:/bin"}}, 1000)
    await running.finish(60)
    return running.output(None).content
print(asyncio.run(command({daemon("one")!r})))
editor = subprocess.Popen(["sleep", "1000"])
print(asyncio.run(command({daemon("two")!r})))
print([process.poll() for process in (*own, editor)])
for process in (*own, editor):
    process.kill()
"""


def test_other_children_of_the_program_live_on(tmp_path: Path) -> None:
    """A local model, a pager, an editor; also one in a session of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=_PATIENCE,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "[None, None, None]"
    assert ran.stdout.count("were killed") == 2
    wait_until_gone(*(pid_in(tmp_path / name) for name in ("one", "two")))
