"""Our keys: a command cannot read them from the program that started it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.provider import Provider, environment

_CANARY = "canary-58e1"
_NOBODY = 65534
_ATTACK = (
    "id -u; tr '\\0' '\\n' </proc/$PPID/environ; head -c 1 /proc/$PPID/mem; ls /proc/$PPID/fd; "
    "cat /proc/$PPID/maps; cat /proc/$PPID/task/*/environ; true"
)
# Root reads everything, so the program becomes another user, when all that it needs is imported. It
# is then as a program is that was just started; without containment first, then with it.
_PROGRAM = f"""
import ctypes, os, sys
from holdfast.agent.tools import containment
from holdfast.cli import program
def run():
    assert program.run(["run", "--yes", "--store", "memory:", "go"]) == 0
run()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({_NOBODY})
    os.setuid({_NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
contain, containment.contain_commands = containment.contain_commands, lambda: None
run()
containment.contain_commands = contain
run()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that another user can reach and write to."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-"))
    if os.getuid() == 0:
        os.chown(made, _NOBODY, _NOBODY)
    yield made
    shutil.rmtree(made)


def test_a_command_cannot_read_the_keys_of_the_program_that_started_it(folder: Path) -> None:
    """Neither its environment nor its memory, its open files or its address space."""
    attack = {"name": "run_command", "arguments": {"command": _ATTACK}}
    with Provider() as provider:
        for _ in range(3):
            provider.say_next({"calls": [attack]}, {"say": "done"})
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder,
            env={
                **os.environ,
                **environment(provider.url),
                "OPENAI_API_KEY": _CANARY,
                "HOLDFAST_CONFIG": os.devnull,
                "HOME": str(folder),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        said = [
            next(m["content"] for m in request["messages"] if m["role"] == "tool")
            for request in provider.replies()[1::2]
        ]
    assert len(said) == 3
    exposed, contained = said[1:]
    user = str(_NOBODY if os.getuid() == 0 else os.getuid())
    assert exposed.startswith(user)
    assert contained.startswith(user)
    if _CANARY not in exposed:
        pytest.skip("this system hides every process's environment")
    assert _CANARY not in json.dumps(contained)
    assert contained.count("Permission denied") >= 5
