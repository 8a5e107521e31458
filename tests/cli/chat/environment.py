"""Where a chat runs: a directory, a store, and what its process finds in the environment."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast.values import Message, TurnInfo
from tests.cli.chat.terminal import Terminal
from tests.cli.shell import Ran, Shell


class Place(NamedTuple):
    """A directory to work in, and a shell with the store and the environment."""

    cwd: Path
    shell: Shell
    program: Path

    def chat(self, *arguments: str, kind: str = "xterm-256color", anew: bool = False) -> Terminal:
        """Start `holdfast chat` on a terminal; with `anew`, as the terminal's own process."""
        program = self.shell.command if anew else [str(self.program)]
        return Terminal(
            self.shell.environment, *arguments, cwd=self.cwd, kind=kind, program=program
        )

    def plain(self, said: str, *arguments: str) -> Ran:
        """Run `holdfast chat` without a terminal."""
        process = self.start(*arguments)
        out, err = process.communicate(said.encode(), timeout=60)
        return Ran(process.returncode, out, err)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `holdfast chat` without a terminal; it reads from a pipe."""
        return subprocess.Popen(
            [str(self.program), "chat", *arguments],
            cwd=self.cwd,
            env=self.shell.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def messages(self, ref: str = "@latest") -> list[Message]:
        """What is stored in a session."""
        with holdfast.open(self.shell.store, readonly=True) as store:
            return store.get(ref).messages()

    def turns(self, ref: str = "@latest") -> list[TurnInfo]:
        """How its turns went."""
        with holdfast.open(self.shell.store, readonly=True) as store:
            return store.get(ref).turns()
