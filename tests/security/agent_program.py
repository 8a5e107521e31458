"""A workplace whose model calls the tools that a test tells it to call."""

from __future__ import annotations

import subprocess

from tests.security.workplace import Workplace

Call = tuple[str, dict[str, str]]


class AgentProgram(Workplace):
    """`holdfast run` with calls that a test writes down beforehand."""

    def run(self, *calls: Call, options: tuple[str, ...] = ()) -> list[str]:
        """Let the model call these tools, one after the other; return the tools' results."""
        for name, arguments in calls:
            self.provider.say_next({"calls": [{"name": name, "arguments": arguments}]})
        self.provider.say_next({"say": "done"})
        ran = self.holdfast("run", "go", *options)
        assert ran.code == 0, ran.err
        messages = self.provider.replies()[-1]["messages"]
        return [message["content"] for message in messages if message["role"] == "tool"]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command."""
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def write(path: str, content: str = "changed\n") -> Call:
    """A call that writes a file."""
    return "write_file", {"path": path, "content": content}


def shell(command: str) -> Call:
    """A call that runs a command."""
    return "run_command", {"command": command}
