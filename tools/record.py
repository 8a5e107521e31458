"""Record the screenshots of the README: a real terminal, a real model, a real kill.

`python tools/record.py docs/images` starts `holdfast chat` with the model on this machine in a
terminal of its own, sends it a prompt, kills it with SIGKILL during the reply, starts it
again, and writes the resulting screen as an SVG.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 96, 30
_PROMPT = "\u203a"
_QUESTION = "Write a short story about a lighthouse keeper and her dog."
_NAMED = {"brown": "yellow", "default": None}
# The picture loads nothing from elsewhere: no font is fetched.
_PICTURE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" \
width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: str) -> None:
        """Start the program."""
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._program = pexpect.spawn(
            command[0],
            command[1:],
            env=environment,
            cwd=cwd,
            dimensions=(LINES, COLUMNS),
        )

    def until(self, seen: Callable[[str], bool], seconds: float = 60.0) -> None:
        """Read the screen until a text appears on it."""
        deadline = time.monotonic() + seconds
        while not seen("\n".join(self._screen.display)):
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(self._screen.display))
            self._look()

    def _look(self) -> None:
        try:
            seen = self._program.read_nonblocking(65536, timeout=0.05)
            self._stream.feed(seen)  # type: ignore[arg-type] # bytes, as no encoding was named
        except pexpect.TIMEOUT:
            return

    def rest(self, seconds: float) -> None:
        """Read the screen for some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._look()

    def type(self, text: str) -> None:
        """Press keys."""
        self._program.send(text)

    def kill(self) -> None:
        """End the program as a power cut would."""
        self._program.kill(9)
        self._program.wait()

    def leave(self) -> None:
        """End the program as a user would."""
        self._program.send("\x04")
        self._program.expect(pexpect.EOF, timeout=30)
        self._program.close()

    def picture(self, title: str) -> str:
        """Return the screen as an SVG."""
        console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"))  # noqa: SIM115
        last = max(n for n, line in enumerate(self._screen.display) if line.strip())
        for number in range(last + 1):
            console.print(self._line(number), soft_wrap=True)
        return console.export_svg(title=title, code_format=_PICTURE)

    def _line(self, number: int) -> Text:
        row, line = self._screen.buffer[number], Text()
        for column in range(COLUMNS):
            cell = row[column]
            line.append(cell.data, Style(color=_colour(cell.fg), bold=cell.bold, dim=False))
        line.rstrip()
        return line


def _colour(name: str) -> str | None:
    if len(name) == 6 and name not in _NAMED:  # noqa: PLR2004 - as in rrggbb
        try:
            int(name, 16)
        except ValueError:
            return name
        return f"#{name}"
    return _NAMED.get(name, name.replace("bright", "bright_"))


def main(folder: Path) -> None:
    """Record everything."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "HOME": home,
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
        }
        command = [str(Path(sys.executable).parent / "holdfast"), "chat", "--model", "local"]
        first = Terminal(command, environment, home)
        first.until(lambda screen: _PROMPT in screen)
        first.type(f"{_QUESTION}\r")
        first.until(lambda screen: "lighthouse" in screen.split(_QUESTION)[-1])
        first.rest(1.5)
        first.kill()
        second = Terminal(command, environment, home)
        second.until(lambda screen: _PROMPT in screen)
        second.rest(1.0)
        second.type("c\r")
        second.until(lambda screen: "stops" in screen)
        second.rest(12.0)
        (folder / "chat.svg").write_text(second.picture("holdfast chat, after kill -9"))
        second.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
