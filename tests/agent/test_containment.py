"""The processes of commands: which are found and killed, with and without containment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.tools import containment
from holdfast.agent.tools.shell import command_tools
from tests.agent.test_shell_tool import cancelled, wait_for_file, wait_until_gone
from tests.agent.tools import Desk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

_BACKGROUND = "[background processes it left running were killed]"
_CONTAINED = """
import asyncio, sys
from holdfast.agent.tools.containment import contain_commands
from holdfast.agent.tools.shell import RunningCommand
assert contain_commands()
async def command(text):
    running = RunningCommand(text, ".", {"PATH": "/usr/bin:/bin"}, 1000)
    await running.finish(60)
    return running.output(None).content
for text in sys.argv[1:]:
    print(asyncio.run(command(text)).replace("\\n", " "))
with open(f"/proc/self/task/{__import__('os').getpid()}/children") as children:
    print("children", children.read())
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(command_tools(str(tmp_path), timeout=60), tmp_path)
    yield made
    made.close()


def contained(folder: Path, *commands: str) -> list[str]:
    """Run commands in a program of their own that contains them; return what each said."""
    ran = subprocess.run(
        [sys.executable, "-c", _CONTAINED, *commands],
        cwd=folder, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return ran.stdout.splitlines()


def test_without_containment_a_session_of_its_own_is_found_below_the_command(desk: Desk) -> None:
    ready = Path(desk.cwd) / "one"
    command = "setsid sh -c 'echo $$ >one; exec sleep 1000' & sleep 1000"
    asyncio.run(cancelled(desk, ready, command=command))
    wait_until_gone(int(ready.read_text()))


def test_without_containment_a_group_of_its_own_is_found_in_the_session(desk: Desk) -> None:
    command = "set -m; (sh -c 'echo $$ >one; exec sleep 1000' >/dev/null 2>&1 &); cat one"
    said = desk.run("run_command", command=f"{command}; while [ ! -s one ]; do :; done")
    assert _BACKGROUND in said
    wait_until_gone(int(wait_for_file(Path(desk.cwd) / "one")))


def test_an_orphan_that_had_ended_by_itself_is_no_background_process(tmp_path: Path) -> None:
    said, children = contained(tmp_path, "(setsid true &); (true &); sleep 0.5")
    assert said == "[exit code 0]"
    assert children == "children "


def test_a_process_that_never_stops_forking_is_caught(tmp_path: Path) -> None:
    """Each lives for a moment, in a session of its own, and leaves another one."""
    (tmp_path / "hop").write_text("setsid sh ./hop </dev/null >/dev/null 2>&1 &\nexit\n")
    said, after, children = contained(tmp_path, "sh ./hop; sleep 0.2", "true")
    assert said == f"{_BACKGROUND} [exit code 0]"
    assert after == "[exit code 0]"
    assert children == "children "


_MEANWHILE = """
import asyncio, subprocess
from holdfast.agent.tools.containment import contain_commands
from holdfast.agent.tools.shell import RunningCommand
assert contain_commands()
async def command():
    running = RunningCommand("while [ ! -e go ]; do sleep 0.01; done", ".", {"PATH": "/bin"}, 9)
    pager = subprocess.Popen(["sleep", "1000"])
    open("go", "w").close()
    await running.finish(60)
    return running.output(None).content, pager
said, pager = asyncio.run(command())
print(said, pager.poll())
pager.kill()
"""


def test_a_child_that_the_program_starts_meanwhile_lives_on(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _MEANWHILE],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout == "[exit code 0] None\n"


def test_what_cannot_be_killed_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another user, such as one of `sudo`."""
    passes: list[int] = []

    def refuse(pid: int, _number: int) -> None:
        passes.append(pid)
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        patch.setattr(os, "killpg", refuse)
        patch.setattr(containment, "_PAUSE_S", 0)
        said = desk.run("run_command", command="sleep 1000 >/dev/null 2>&1 & echo $!")
    pid = int(said.splitlines()[0])
    os.kill(pid, 9)
    assert said.splitlines()[1:] == [
        f"[processes it started could not be killed: {pid}]", "[exit code 0]"
    ]  # fmt: skip
    assert passes.count(pid) == 50


def test_a_forked_process_has_no_commands() -> None:
    """Whose children they would be, and of whom it is no subreaper."""
    commands = containment.CommandProcesses()
    commands.adopts_orphans = True
    commands.start(lambda: subprocess.Popen(["true"], start_new_session=True)).wait()
    commands.reset()
    assert not commands.adopts_orphans
    assert commands.end(os.getpid() + 10_000_000) == containment.Ended()
