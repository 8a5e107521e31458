"""What README and docs show of a framework is run in that framework's environment.

The python blocks after `<!-- in NAME -->` are one program for each framework of a page; what it
prints is compared with the output blocks that follow them. A comment `<!-- setup in NAME: … -->`
comes before it, for what stands in for a model.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.adapters.environment import ROOT, interpreter_of, surroundings
from tools.frameworks import FRAMEWORKS, Framework

_PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "frameworks.md")
_BLOCK: Final = re.compile(
    r"<!-- in (?P<name>\w+) -->\n+```python\n(?P<code>.*?)```\n"
    r"(?:\n*```output\n(?P<shown>.*?)```\n)?",
    re.DOTALL,
)
_SETUP: Final = re.compile(r"<!-- setup in (?P<name>\w+):\n(?P<code>.*?)-->", re.DOTALL)
_BETWEEN: Final = "----- next block -----"


def _blocks(page: Path, framework: str) -> list[tuple[str, str | None]]:
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [(block["code"], block["shown"]) for block in found if block["name"] == framework]


def _setup(page: Path, framework: str) -> str:
    found = _SETUP.finditer(page.read_text("utf-8"))
    return "".join(block["code"] for block in found if block["name"] == framework)


_CASES: Final = [
    pytest.param(page, framework, id=f"{page.stem}-{framework.name}")
    for page in _PAGES
    for framework in FRAMEWORKS
    if page.exists() and _blocks(page, framework.name)
]


@pytest.mark.parametrize(("page", "framework"), _CASES)
def test_a_page_shows_what_its_program_prints(
    page: Path, framework: Framework, tmp_path: Path
) -> None:
    python = interpreter_of(framework)
    shown = _blocks(page, framework.name)
    program = tmp_path / "program.py"
    code = f"\nprint({_BETWEEN!r})\n".join(code for code, _ in shown)
    program.write_text(_setup(page, framework.name) + code, "utf-8")
    run = subprocess.run(
        [str(python), str(program)],
        cwd=tmp_path,
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    printed = run.stdout.split(f"{_BETWEEN}\n")
    for (code, expected), actual in zip(shown, printed, strict=True):
        assert expected is None or actual == expected, code


def test_every_framework_is_shown() -> None:
    assert _shown(ROOT / "docs" / "frameworks.md") == {framework.name for framework in FRAMEWORKS}
    assert _shown(ROOT / "README.md") >= {"openai_agents", "langgraph"}


def _shown(page: Path) -> set[str]:
    return {block["name"] for block in _BLOCK.finditer(page.read_text("utf-8"))}
