"""The documentation is executed.

A page (README.md, docs/*.md) is read as a list of fenced blocks and run from top to bottom in an
empty folder:

- `python`: executed; the blocks of a page share one namespace.
- `output` (or `text output`): what the python block before it prints.
- `console`: each `$` line goes through the shell and must succeed; the lines below it, if any, are
  what it prints.

In expected output, a line `...` stands for any lines and `...` within a line for anything on it.
A block after `<!-- not run: reason -->` is left alone, and one after `<!-- in NAME -->` is run in
the environment of a framework (tests/adapters/test_pages.py). Other fences are left alone too, but
not other spellings of these three.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.sqlite import migrations
from holdfast.transfer.format import VERSION

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)")
_COMMAND = re.compile(r"\$ (?P<line>(?:.*\\\n)*.*\n)(?P<shown>(?:(?!\$ ).*\n)*)")
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
_ELSEWHERE = re.compile(r"<!-- in \w+ -->")
_SYNONYMS = {"bash", "py", "pycon", "python3", "sh", "shell", "shell-session", "zsh"}


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its opening fence, counted from 1."""

    kind: str
    body: str
    line: int
    run: bool
    elsewhere: bool = False


@dataclass(frozen=True)
class Command:
    """A `$` line of a console block, and the output shown below it."""

    line: str
    shown: str


def blocks(text: str) -> Iterator[Block]:
    lines = enumerate(text.splitlines(), start=1)
    above = ""
    for number, line in lines:
        if fence := _FENCE.fullmatch(line):
            body = _body(lines, fence["ticks"], len(fence["indent"]), number)
            run = not _NOT_RUN.fullmatch(above.strip())
            elsewhere = _ELSEWHERE.fullmatch(above.strip()) is not None
            yield Block(_kind(fence["info"]), body, number, run and not elsewhere, elsewhere)
            above = ""
        elif line.strip():
            above = line


def _kind(info: str) -> str:
    words = info.split()
    return "output" if "output" in words else next(iter(words), "")


def _body(lines: Iterator[tuple[int, str]], ticks: str, indent: int, opened: int) -> str:
    body: list[str] = []
    for _, line in lines:
        if line.strip() == ticks:
            return "".join(body)
        body.append(line[indent:] + "\n")
    pytest.fail(f"the block opened in line {opened} is never closed")


def commands(body: str) -> list[Command]:
    """A backslash at the end of a line continues the command, as in the shell."""
    if not body.startswith("$ "):
        pytest.fail(f"a console block begins with a `$ ` line, not with {body[:40]!r}")
    return [Command(found["line"], found["shown"]) for found in _COMMAND.finditer(body)]


def same(printed: str, shown: str) -> bool:
    def pattern(line: str) -> str:
        if line == "...":
            return r"(?:.*\n)*?"
        return ".*".join(map(re.escape, line.split("..."))) + r"\n"

    wanted = "".join(pattern(line) for line in _stripped(shown))
    return re.fullmatch(wanted, "".join(f"{line}\n" for line in _stripped(printed))) is not None


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def expect(printed: str, shown: str, where: str) -> None:
    if not same(printed, shown):
        pytest.fail(f"{where} shows\n\n{shown}\nbut this is printed:\n\n{printed}")


def run_page(text: str, name: str) -> None:
    """Run the blocks of a page in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    elsewhere = False
    for block in blocks(text):
        if block.elsewhere or (elsewhere and block.kind == "output"):
            elsewhere = block.elsewhere
            continue
        elsewhere = False
        where = f"{name}:{block.line}"
        if block.kind in _SYNONYMS:
            pytest.fail(f"{where}: write `python` or `console`, so that it is run")
        if block.kind == "output" and block.run:
            if printed is None:
                pytest.fail(f"{where}: no python block that runs is before this output")
            expect(printed, block.body, where)
        if block.kind == "console" and block.run:
            run_console(block, where)
        printed = (
            run_python(block, name, namespace) if block.kind == "python" and block.run else None
        )


def run_python(block: Block, name: str, namespace: dict[str, Any]) -> str:
    placed = "\n" * block.line + block.body  # a traceback names the line of the page
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(placed, name, "exec", dont_inherit=True), namespace)  # noqa: S102
    return printed.getvalue()


def run_console(block: Block, where: str) -> None:
    for command in commands(block.body):
        done = subprocess.run(  # noqa: S602 - the shell is where the reader types it
            command.line,
            shell=True,
            check=False,
            env=_shell(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            pytest.fail(f"{where}: {command.line}exit code {done.returncode}\n\n{done.stdout}")
        if command.shown:
            expect(done.stdout, command.shown, where)


def _shell() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.usefixtures("_empty_folder")
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_block_runs_and_prints_what_the_page_shows(page: Path) -> None:
    run_page(page.read_text(encoding="utf-8"), str(page.relative_to(_ROOT)))


def test_the_readme_has_code_that_runs() -> None:
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    assert any(block.kind == "python" and block.run for block in blocks(readme))


def test_the_page_of_the_format_states_the_newest_formats() -> None:
    page = (_ROOT / "docs/format.md").read_text(encoding="utf-8")
    assert f"in `user_version`, now {max(migrations.load())}." in page
    assert f"`version`, now {VERSION} (" in page


_RIGHT = {
    "output": "```python\nx = 1\n```\n```python\nprint(x)\n```\nIt prints:\n```text output\n1\n```",
    "any lines": "```python\nprint(1, 2, 3, sep='\\n')\n```\n```output\n1\n...\n```",
    "no lines": "```python\nprint(1)\n```\n```output\n1\n...\n```",
    "part of a line": "```python\nprint('id 7f3a made')\n```\n```output\nid ... made\n```",
    "console": "```console\n$ echo one; echo two\none\n...\n$ true\n```",
    "continued": "```console\n$ echo one \\\n    two\none two\n```",
    "indented": "- list\n  ```python\n  if True:\n      print(1)\n  ```\n  ```output\n  1\n  ```",
    "not run": "<!-- not run: it would fail -->\n\n```python\n1 / 0\n```",
    "elsewhere": "<!-- in strands -->\n```python\n1 / 0\n```\n```output\n1\n```",
    "shared folder": "```python\nopen('f', 'w').close()\n```\n```console\n$ ls\nf\n```",
    "longer fence": "````markdown\n```python\n1 / 0\n```\n````",
}

_WRONG = {
    "output": "```python\nprint(1)\n```\n```output\n2\n```",
    "missing line": "```python\nprint(1)\n```\n```output\n1\n2\n```",
    "extra line": "```python\nprint(1, 2, sep='\\n')\n```\n```output\n1\n```",
    "silent": "```python\n```\n```output\n1\n```",
    "output of nothing": "```output\n1\n```",
    "exit code": "```console\n$ false\n```",
    "console output": "```console\n$ echo one\ntwo\n```",
    "no command": "```console\nholdfast ls\n```",
    "no reason": "<!-- not run: -->\n```console\n$ false\n```",
    "synonym": "```sh\nfalse\n```",
    "open": "```python\nprint(1)\n",
}


@pytest.mark.usefixtures("_empty_folder")
@pytest.mark.parametrize("page", _RIGHT.values(), ids=_RIGHT.keys())
def test_a_page_that_tells_the_truth_passes(page: str) -> None:
    run_page(page, "page.md")


@pytest.mark.usefixtures("_empty_folder")
@pytest.mark.parametrize("page", _WRONG.values(), ids=_WRONG.keys())
def test_a_page_that_does_not_is_caught(page: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        run_page(page, "page.md")


@pytest.mark.usefixtures("_empty_folder")
def test_an_exception_in_a_block_is_an_exception_of_the_test() -> None:
    with pytest.raises(ZeroDivisionError):
        run_page("```python\n1 / 0\n```", "page.md")
