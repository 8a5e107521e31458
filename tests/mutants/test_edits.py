"""The mutants of `make mutants` still find their targets, and the tests they name exist."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tools.mutants.edits import ROOT, Misplaced, Mutant, areas, edited, load

_SUITE = ROOT / "src/holdfast/testing/conformance"
_INHERITING = {"test_conformance.py", "test_toy_backend.py"}
_AREAS = pytest.mark.parametrize("area", areas())


@_AREAS
def test_every_mutant_finds_its_target(area: str) -> None:
    """Its target occurs once, and the edit changes it."""
    for mutant in load(area):
        path, text = edited(mutant)
        assert text != (ROOT / path).read_text(), mutant.name


@_AREAS
def test_the_tests_that_mutants_name_exist(area: str) -> None:
    """A test that was renamed or removed leaves no mutant without a test."""
    for mutant in load(area):
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, *names = test.partition("[")[0].split("::")
            assert (ROOT / path).exists(), path
            assert not names or names[-1] in _tests_of(ROOT / path), test


def test_no_two_mutants_have_one_name() -> None:
    names = [mutant.name for area in areas() for mutant in load(area)]
    assert len(names) == len(set(names))


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the names of tests in a file; every backend inherits those of the suite."""
    inherited = _SUITE.glob("*.py") if path.name in _INHERITING else ()
    nodes = [node for file in (path, *inherited) for node in ast.walk(ast.parse(file.read_text()))]
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


# ------------------------------------------------------------------------------- making an edit

_SOURCE = """
class Door:
    def open(self) -> None:
        if self.locked and not self.key:
            raise Locked
        fsync(self.fd)
        self.count = (
            self.count + 1
        )
        fsync(self.fd)
"""


def _edit(tmp_path: Path, find: str, replace: str, nth: int | None = None) -> str:
    module = tmp_path / "src" / "house" / "door.py"
    module.parent.mkdir(parents=True)
    module.write_text(_SOURCE)
    mutant = Mutant("m", find, replace, ("t",), function="house.door.Door.open", nth=nth)
    path, text = edited(mutant, tmp_path)
    assert tmp_path / path == module
    return text


def test_an_expression_is_replaced_where_it_stands(tmp_path: Path) -> None:
    text = _edit(tmp_path, "self.locked and not self.key", "False")
    assert text == _SOURCE.replace("self.locked and not self.key", "False")


def test_statements_are_found_however_they_are_formatted(tmp_path: Path) -> None:
    text = _edit(tmp_path, "self.count = self.count + 1\nfsync(self.fd)", "pass")
    assert text.endswith("        fsync(self.fd)\n        pass\n")


def test_an_edit_that_fits_twice_says_which(tmp_path: Path) -> None:
    text = _edit(tmp_path, "fsync(self.fd)", "None", nth=2)
    assert text.endswith(")\n        None\n")


@pytest.mark.parametrize("find", ["fsync(self.fd)", "self.window"])
def test_an_edit_that_fits_nowhere_or_twice_is_refused(tmp_path: Path, find: str) -> None:
    with pytest.raises(Misplaced, match=r"found [02] times"):
        _edit(tmp_path, find, "None")
