"""On a real terminal: colours, narrow windows, and messages that arrive while one looks."""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.cli.output.screen import cells
from tests.cli.shell import RAW, Shell, hostile_session

_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_PROMPT = re.compile(r"ended (\d+) >\s*\Z")  # and nothing behind it


def look(shell: Shell, *arguments: str, columns: int = 80, rows: int = 50, pager: str = "") -> str:
    """Run a command on a terminal of this size; give what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {"TERM": "xterm-256color", "PAGER": pager, **shell.environment}
    if shell.nursery is not None:
        with shell.nursery.free(environment, b"") as free:
            if free:
                _, shown = shell.nursery.run_on((ours, theirs), arguments, environment)
                return shown.decode().replace("\r\n", "\n")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            return b"".join(_read(terminal.fileno())).decode().replace("\r\n", "\n")


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the last writer is gone.
            return
        if not data:
            return
        yield data


@pytest.mark.parametrize(
    "command",
    [["ls"], ["show", "support-42"], ["doctor"], ["tree", "support-42"], ["stats"]],
    ids=" ".join,
)
def test_a_terminal_gets_colours_and_nothing_else(crashed: Shell, command: list[str]) -> None:
    """Styles are the only control sequences; without them it is plain text."""
    said = look(crashed, *command)
    assert "\x1b[" in said
    assert "\x1b" not in _STYLES.sub("", said)


def test_ls_on_a_terminal_has_short_ids_that_work(crashed: Shell) -> None:
    """What is seen can be typed."""
    row = _STYLES.sub("", look(crashed, "ls")).splitlines()[1].split()
    assert row[1:3] == ["support-42", "interrupted"]
    assert len(row[0]) == 8
    crashed.ok("show", row[0])


@pytest.mark.parametrize(
    "name", [("NO_COLOR", "1"), ("TERM", "dumb")], ids=["NO_COLOR", "TERM=dumb"]
)
def test_colours_can_be_turned_off(crashed: Shell, name: tuple[str, str]) -> None:
    """No control sequence of any kind is left, bold and dim included."""
    crashed.environment[name[0]] = name[1]
    said = look(crashed, "show", "support-42")
    assert "\x1b" not in said
    assert "It is in Oslo." in said


@pytest.mark.parametrize("columns", [100, 60, 36])
def test_a_table_fits_the_window(crashed: Shell, columns: int) -> None:
    """Also with a session whose every field is long; the state is always seen."""
    hostile_session(crashed.store)
    lines = _STYLES.sub("", look(crashed, "ls", columns=columns)).splitlines()
    assert len(lines) == 3
    assert max(map(cells, lines)) <= columns
    assert "interrupted" in lines[2]


def test_long_lines_are_wrapped_between_words(shell: Shell) -> None:
    """And stay indented under their message."""
    shell.ok("append", "a", "several words " * 20)
    lines = look(shell, "show", "a", columns=40).splitlines()
    body = [_STYLES.sub("", line) for line in lines if "several" in line]
    assert len(body) > 5
    assert all(line.startswith("  ") and cells(line.rstrip()) <= 40 for line in body[1:])


@pytest.mark.parametrize("colours", [True, False])
def test_nothing_hostile_reaches_a_terminal(shell: Shell, colours: bool) -> None:
    """Neither as a control sequence nor as markup."""
    id = hostile_session(shell.store)
    if not colours:
        shell.environment["NO_COLOR"] = "1"
    for command in (
        ["ls"],
        ["show", id],
        ["show", id, "--tools", "--thinking"],
        ["log"],
        ["log", id],
        ["tree", id],
    ):
        said = _STYLES.sub("", look(shell, *command, columns=160))
        assert not RAW & set(said)
        assert r"\x1b[2J\x1b]0;owned" in said
    assert "[bold red]markup[/]" in said


# --------------------------------------------------------------------------------------- Markdown


_WRITTEN = """# Where it is

Your parcel is in **Oslo**, see `track` and [the map](http://map.example/17 "live").

- one
- two
  1. deep

> quoted

```python
def where():
    return "Oslo"
```

| Place | Day |
|-------|-----|
| Oslo  | 3   |

<b>bold?</b> &#8238;tegrof ![cat](http://cats.example/1.png)

[//]: # (hidden from readers)
"""


def test_markdown_is_drawn_on_a_terminal(shell: Shell) -> None:
    """Headings, lists, quotes, code and tables; nothing that was written is hidden."""
    shell.ok("append", "a", _WRITTEN, "--role", "assistant")
    said = look(shell, "show", "a")
    lines = [line.rstrip() for line in _STYLES.sub("", said).splitlines()]
    start = lines.index("  # Where it is")
    assert lines[start : start + 25] == [
        "  # Where it is",
        "",
        "  Your parcel is in Oslo, see track and the map (http://map.example/17 live).",
        "",
        "  • one",
        "  • two",
        "    1. deep",
        "",
        "  ▌ quoted",
        "",
        "  python",
        "    def where():",
        '        return "Oslo"',
        "",
        "  Place  Day",
        "  ─────  ───",
        "  Oslo   3",
        "",
        "  <b>bold?</b> &#8238;tegrof !cat (http://cats.example/1.png)",
        "",
        "  [//]: # (hidden from readers)",
        "",
    ]
    assert "\x1b[1mOslo\x1b[0m" in said
    assert "\x1b]8;" not in said


def test_without_colours_the_marks_stay(shell: Shell) -> None:
    """What is bold or code can be told by its marks, on a terminal that has no other way."""
    shell.ok("append", "a", _WRITTEN, "--role", "assistant")
    shell.environment["NO_COLOR"] = "1"
    said = look(shell, "show", "a")
    assert "Your parcel is in **Oslo**, see `track` and the map (" in said
    assert "  • one\n" in said


def test_a_pipe_gets_markdown_as_it_was_written(shell: Shell) -> None:
    """So that it can be read, searched and rendered by something else."""
    shell.ok("append", "a", _WRITTEN, "--role", "assistant")
    said = shell.ok("show", "a")
    assert "  Your parcel is in **Oslo**, see `track` and [the map](http://map" in said


# ------------------------------------------------------------------------------------- the pager


def _long(shell: Shell) -> None:
    shell.ok("append", "a", "\n".join(f"line {n} of it" for n in range(100)))


def test_what_is_longer_than_the_screen_is_paged(shell: Shell, tmp_path: Path) -> None:
    """By the program that $PAGER names, with its arguments; all of it, and in colour."""
    _long(shell)
    kept = tmp_path / "what the pager got"
    said = look(shell, "show", "a", rows=30, pager=f"sh -c 'cat > \"{kept}\"; echo paged'")
    assert said == "paged\n"
    got = kept.read_text()
    assert "\x1b[" in got
    assert all(f"line {n} of it\n" in got for n in range(100))


def test_less_is_told_to_keep_no_file_of_what_was_searched_for(shell: Shell) -> None:
    _long(shell)
    shell.environment.pop("LESSHISTFILE", None)
    pager = "sh -c 'cat > /dev/null; echo $LESSHISTFILE'"
    assert look(shell, "show", "a", rows=30, pager=pager) == "-\n"
    shell.environment["LESSHISTFILE"] = "mine"
    assert look(shell, "show", "a", rows=30, pager=pager) == "mine\n"


def test_what_fits_the_screen_is_not_paged(shell: Shell) -> None:
    """Nor anything else when the pager is unwanted, or is no program at all."""
    _long(shell)
    assert "line 99 of it" in look(shell, "show", "a", rows=200, pager="false")
    assert "line 99 of it" in look(shell, "show", "a", "--no-pager", rows=30, pager="false")
    assert "line 99 of it" in look(shell, "show", "a", rows=30, pager="no-such-program -x")
    assert "line 99 of it" in look(shell, "show", "a", rows=30, pager="less 'unclosed")


def test_a_pipe_is_never_paged(shell: Shell) -> None:
    """Whatever $PAGER says."""
    _long(shell)
    shell.environment["PAGER"] = "false"
    assert "line 99 of it" in shell.ok("show", "a")


def test_a_pager_may_be_left_at_any_time(shell: Shell) -> None:
    """Also before it has everything: that is no error."""
    shell.ok("append", "a", stdin=b"many words " * 50_000)
    said = look(shell, "show", "a", rows=30, pager="sh -c 'head -n 1; echo enough'")
    assert said.endswith("enough\n")
    assert "Error" not in said


def test_less_shows_colours_and_gives_the_terminal_back(shell: Shell, tmp_path: Path) -> None:
    """Without $PAGER it is less; Ctrl-C does not end it, q does, and the exit code is 0."""
    if shutil.which("less") is None:
        pytest.skip("less is not installed")
    _long(shell)
    shell.environment.pop("PAGER", None)
    shell.environment.pop("LESS", None)
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} show a")
        screen = tmux.wait_for(lambda screen: "line 20 of it" in screen)
        assert "line 99 of it" not in screen
        assert "ESC" not in screen
        tmux.press("C-c")
        tmux.press_until("G", lambda screen: "line 99 of it" in screen)
        tmux.press("q")
        assert tmux.ended() == 0


# ----------------------------------------------------------------------------------- interaction


def test_append_asks_somebody_at_a_terminal(shell: Shell, tmp_path: Path) -> None:
    """It says what it waits for, and what is typed is stored."""
    tmux = Tmux(shell, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} append typed")
        tmux.wait_for(lambda screen: "then Ctrl-D" in screen)
        tmux.type("Hello there")
        tmux.press("C-d")
        tmux.wait_for(lambda screen: "new session typed (" in screen)
    assert shell.ok("show", "--raw", "typed") == "Hello there\n"


def test_log_shows_messages_as_they_come(talked: Shell, tmp_path: Path) -> None:
    """In a real terminal, until Ctrl-C, which leaves the exit code 130."""
    tmux = Tmux(talked, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} log -f -n 1 support-42")
        tmux.wait_for(lambda screen: "sticker" in screen)
        talked.ok("append", "support-42", "first \x1b[2J news")
        tmux.wait_for(lambda screen: r"first \x1b[2J news" in screen)
        talked.ok("append", "support-42", "second news", "--role", "assistant")
        screen = tmux.wait_for(lambda screen: "second news" in screen)
        assert screen.index("sticker") < screen.index("first") < screen.index("second")
        assert screen.count("second news") == 1
        tmux.press("C-c")
        assert tmux.ended() == 130


def test_log_says_when_the_branch_changed(talked: Shell, tmp_path: Path) -> None:
    """What was taken back is said, and what follows comes behind it."""
    tmux = Tmux(talked, tmp_path)
    with tmux:
        tmux.command(f"{tmux.holdfast} log -f -n 1 support-42")
        tmux.wait_for(lambda screen: "sticker" in screen)
        with holdfast.open(talked.store) as store:
            session = store.get("support-42")
            session.undo()
            tmux.wait_for(lambda screen: "══ went back to 6 (undo) ══" in screen)
            session.redo()
            tmux.wait_for(lambda screen: "what came after 6 is back (redo)" in screen)
            session.append(Message.user("and then"))
            screen = tmux.wait_for(lambda screen: "and then" in screen)
        assert screen.count("sticker") == 2
        tmux.press("C-c")


class Tmux:
    """A terminal with a shell in it, on a server of its own.

    What is typed while a program still runs may be read by that, or be lost when it ends. So
    `command` waits for the prompt of the shell, which says how the last command ended; `ended`
    waits for it and gives that.
    """

    def __init__(self, shell: Shell, directory: Path) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self._environment = {**shell.environment, "LC_ALL": "C.UTF-8"}
        # The path of a socket is short.
        self._socket = Path("/tmp") / f"holdfast-{os.getpid()}-{id(self):x}"  # noqa: S108
        self._prompt = self._socket.with_suffix(".sh")
        self._environment["ENV"] = str(self._prompt)  # The shell reads it when it begins.
        self.holdfast = f"{sys.executable} -m holdfast"
        self._directory = directory

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", str(self._socket), *arguments]
        ran = subprocess.run(
            command, env=self._environment, cwd=self._directory, capture_output=True, check=True
        )
        return ran.stdout.decode()

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def command(self, text: str) -> None:
        """Type a command at the shell; it has begun when the screen shows something of it."""
        self.ended()
        self.type(text)

    def ended(self) -> int:
        """Wait until the shell asks for a command; give how the last one ended."""
        found = _PROMPT.search(self.wait_for(lambda screen: _PROMPT.search(screen) is not None))
        assert found is not None
        return int(found[1])

    def press_until(self, key: str, seen: Callable[[str], bool]) -> None:
        """Press a key until the screen shows it: what was pressed behind Ctrl-C may be lost."""
        pressed = time.monotonic()
        self.press(key)

        def pressing(screen: str) -> bool:
            nonlocal pressed
            if not seen(screen) and time.monotonic() > pressed + 1:
                self.press(key)
                pressed = time.monotonic()
            return seen(screen)

        self.wait_for(pressing)

    def wait_for(self, seen: Callable[[str], bool]) -> str:
        """Wait until the screen shows it; a loaded machine may take its time."""
        deadline = time.monotonic() + 60
        while not seen(screen := self._tmux("capture-pane", "-p", "-J")):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def __enter__(self) -> None:
        self._prompt.write_text("PS1='ended $? > '\n")
        self._tmux("new-session", "-d", "-x", "100", "-y", "40", "/bin/sh")

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        self._socket.unlink(missing_ok=True)
        self._prompt.unlink()
