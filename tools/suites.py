"""`make suites`: frameworks' own tests with our stores in place of theirs; writes the docs' table.

Each module of `tests/adapters/suites` gets a framework's tests from its source distribution, runs
them with its own store and with ours, and names every failure that is expected with its reason. Any
other failure is printed, and ends the command with 1.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.adapters.suites.result import SuiteResult
from tools.environments import NotInstalled
from tools.frameworks import FRAMEWORKS

_ROOT: Final = Path(__file__).parents[1]
_SUITES: Final = _ROOT / "tests" / "adapters" / "suites"
_PAGE: Final = _ROOT / "docs" / "frameworks.md"
_BEGIN: Final = "<!-- printed by `make suites` -->\n"
_END: Final = "<!-- end -->\n"
_HEAD: Final = (
    "| framework | its tests | with its own store | with Holdfast | expected failures |\n"
    "|---|---|---|---|---|\n"
)


def main(names: list[str]) -> int:
    """Run the suites with these names, or all; return the exit code."""
    modules = {path.stem for path in _SUITES.glob("*.py")}
    wanted = [
        framework
        for framework in FRAMEWORKS
        if framework.name in modules and (not names or framework.name in names)
    ]
    rows, problems = [], 0
    for framework in wanted:
        try:
            python = framework.interpreter()
        except NotInstalled as error:
            print(f"{framework.name}: not run: {error}", file=sys.stderr)
            problems += 1
            continue
        suite = importlib.import_module(f"tests.adapters.suites.{framework.name}")
        with tempfile.TemporaryDirectory(prefix="holdfast-suite-") as folder:
            result: SuiteResult = suite.run(python, Path(folder))
        rows.append(_row(framework.packages[0], result))
        print(rows[-1], end="", flush=True)
        for test in result.unexpected:
            print(f"  unexpected: {test}")
        for test, reason in result.expected_failures.items():
            print(f"  expected: {test}: {reason}")
        problems += len(result.unexpected)
    if not names and not problems:
        _write(rows)
    return 1 if problems else 0


def _row(package: str, result: SuiteResult) -> str:
    own = "" if result.own is None else f"{result.own} of {result.total}"
    failures = len(result.expected_failures)
    return (
        f"| {package.replace('==', ' ')} | {result.name} | {own} | {result.passed} of "
        f"{result.total} | {failures} |\n"
    )


def _write(rows: list[str]) -> None:
    """Replace the table between the marks of the page."""
    text = _PAGE.read_text("utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    _PAGE.write_text(f"{before}{_BEGIN}{_HEAD}{''.join(rows)}{_END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
