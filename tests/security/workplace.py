"""A user's machine: a home, a directory to work in, and a provider that does as a prompt says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import holdfast
from holdfast import Goal, Message
from tests.agent.provider import Provider, environment
from tests.cli.chat.terminal import Terminal
from tests.cli.shell import Ran, Shell


class Workplace:
    """All directories of a user in one folder: `home`, `work` (which is in it), and the others.

    Commands run as programs of their own, or as the faster `program`.
    """

    def __init__(
        self, root: Path, provider: Provider, program: Path | None = None, store: str = "own.db"
    ) -> None:
        self.root = root
        self.provider = provider
        self.home = root / "home"
        self.work = self.home / "work"
        self.elsewhere = self.home / "elsewhere"
        self.config = root / "config" / "holdfast" / "holdfast.toml"
        self.state = root / "state" / "holdfast"
        directories = {name: root / name for name in ("cache", "config", "data", "state")}
        temporary = root / "temporary"
        for directory in (
            *(self.work, self.elsewhere, self.config.parent, temporary),
            *directories.values(),
        ):
            directory.mkdir(parents=True, exist_ok=True)
        shell = Shell(self.home / store)
        self.command = shell.command if program is None else [str(program)]
        self.store = shell.store
        self.environment = {
            **shell.environment,
            **environment(provider.url),
            **{f"XDG_{name.upper()}_HOME": str(path) for name, path in directories.items()},
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
        }

    def configure(self, text: str) -> None:
        """Write the user's own configuration."""
        self.config.write_text(text)

    def holdfast(self, *arguments: str, cwd: Path | None = None, stdin: str = "") -> Ran:
        """Run a command in the directory to work in, or in another."""
        ran = subprocess.run(
            [*self.command, *arguments],
            cwd=cwd or self.work,
            env=self.environment,
            input=stdin.encode(),
            capture_output=True,
            timeout=120,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def chat(self, *arguments: str, cwd: Path | None = None) -> Terminal:
        """Start `holdfast chat` on a terminal."""
        where = cwd or self.work
        return Terminal(self.environment, *arguments, cwd=where, program=self.command)

    def sent(self) -> str:
        """Everything that the provider was sent."""
        return "\n".join(str(request["messages"]) for request in self.provider.requests)


def strangers_store(path: Path, cwd: Path | str = "/") -> Path:
    """Make a store with a session that wants to act: a root, a goal, a queue and system text."""
    with holdfast.open(path) as store:
        session = store.session("plan", cwd=str(cwd), title="The plan")
        session.append(
            Message.system("SYSTEM-OF-A-STRANGER"), Message.user("hello"), Message.assistant("hi")
        )
        session.enqueue('call read_file {"path": "QUEUE-OF-A-STRANGER"}')
        session.update(goal=Goal("GOAL-OF-A-STRANGER"))
    return path
