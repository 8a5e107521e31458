"""`make suites`: what frameworks' own tests, and four writers, find in our stores and in theirs.

Each module of `tests/adapters/suites` gets a framework's tests from its source distribution, runs
them with its own store and with ours, and names every failure that is expected with its reason. Any
other failure is printed, and ends the command with 1. Then four processes write to one session
through each adapter (`tests/adapters/writers.py`). Both tables are written to the docs.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.adapters import writers
from tests.adapters.suites.result import SuiteResult
from tools.environments import NotInstalled
from tools.frameworks import FRAMEWORKS, Framework

_ROOT: Final = Path(__file__).parents[1]
_SUITES: Final = _ROOT / "tests" / "adapters" / "suites"
_PAGE: Final = _ROOT / "docs" / "frameworks.md"
_HEAD: Final = (
    "| framework | its tests | with its own store | with Holdfast | expected failures |",
    "|---|---|---|---|---|",
)


def main(names: list[str]) -> int:
    """Run the suites with these names; or all, and the writers. Return the exit code."""
    modules = {path.stem for path in _SUITES.glob("*.py")}
    wanted = [one for one in FRAMEWORKS if one.name in (names or modules)]
    results = [(framework, _run(framework)) for framework in wanted]
    for _, result in results:
        for test in result.unexpected:
            print(f"unexpected: {test}")
    if any(result.unexpected for _, result in results):
        return 1
    if not names:
        _write("suites", [*_HEAD, *(_row(*result) for result in results)])
        _write("writers", writers.rows())
    return 0


def _run(framework: Framework) -> SuiteResult:
    """Run a framework's tests with our store, and print what they find."""
    try:
        python = framework.interpreter()
    except NotInstalled as error:
        return SuiteResult(0, 0, unexpected=(f"{framework.name} is not here: {error}",))
    suite = importlib.import_module(f"tests.adapters.suites.{framework.name}")
    with tempfile.TemporaryDirectory(prefix="holdfast-suite-") as folder:
        result: SuiteResult = suite.run(python, Path(folder))
    print(_row(framework, result), flush=True)
    for test, reason in result.expected_failures.items():
        print(f"  expected: {test}: {reason}")
    return result


def _row(framework: Framework, result: SuiteResult) -> str:
    package = framework.packages[0].replace("==", " ")
    own = "" if result.own is None else f"{result.own} of {result.total}"
    ours = f"{result.passed} of {result.total}"
    return f"| {package} | {result.name} | {own} | {ours} | {len(result.expected_failures)} |"


def _write(table: str, lines: Sequence[str]) -> None:
    """Replace the table between the marks of the page."""
    begin, end = f"<!-- make suites: {table} -->\n", f"<!-- end of {table} -->\n"
    before, rest = _PAGE.read_text("utf-8").split(begin)
    _, after = rest.split(end)
    text = "".join(f"{line}\n" for line in lines)
    _PAGE.write_text(f"{before}{begin}{text}{end}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
