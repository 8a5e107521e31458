"""The mutants, and how their edits are applied.

A mutant is defined in one of the `.toml` files beside this module:

    [[mutant]]
    name = "a flush behind the close of its draft is stored"
    function = "holdfast.draft.DraftCore.take_unstored"
    find = "not self._unstored or self.over"
    replace = "not self._unstored"
    tests = ["tests/storage/test_drafts.py::test_a_flush_behind_the_close"]

`find` is an expression, or one or more statements, that occurs exactly once in the function
(`nth` chooses among several, from 1). It is compared as syntax, so formatting and line numbers do
not matter. For SQL, `file` names a file below `src/holdfast` in place of `function`, and `find` is
text, in which any white space equals any other.

A mutant that no longer finds its target is an error: a change that renames or rewrites the guarded
code has to update the mutant, too.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

LISTS = Path(__file__).parent
ROOT = LISTS.parents[1]


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One edit, and the tests of which at least one must fail because of it."""

    name: str
    find: str
    replace: str
    tests: tuple[str, ...]
    function: str | None = None
    file: str | None = None
    nth: int | None = None


class Misplaced(Exception):
    """A mutant does not find its target in the source, or finds several."""


def load(area: str) -> list[Mutant]:
    """Return the mutants of one file."""
    text = (LISTS / f"{area}.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["mutant"], list[Mutant])


def areas() -> list[str]:
    """Return the names of all lists."""
    return sorted(path.stem for path in LISTS.glob("*.toml"))


def edited(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """Return the file that a mutant changes, relative to `root`, and its new content."""
    if mutant.file is not None:
        path = Path("src/holdfast") / mutant.file
        return path, _edited_text((root / path).read_text(), mutant)
    if mutant.function is None:
        raise Misplaced(f"{mutant.name}: needs `function` or `file`")
    path, names = _module_of(mutant.function, root)
    return path, _edited_python((root / path).read_text(), names, mutant)


# ------------------------------------------------------------------------------------------- text


def _edited_text(source: str, mutant: Mutant) -> str:
    words = map(re.escape, mutant.find.split())
    found = list(re.finditer(r"\s+".join(words), source))
    match = found[_chosen(len(found), mutant)]
    return source[: match.start()] + mutant.replace + source[match.end() :]


def _chosen(found: int, mutant: Mutant) -> int:
    """Return the index of the occurrence to edit."""
    if mutant.nth is None and found == 1:
        return 0
    if mutant.nth is not None and mutant.nth <= found:
        return mutant.nth - 1
    where = mutant.function or mutant.file
    raise Misplaced(f"{mutant.name}: found {found} times in {where}: {mutant.find}")


# ----------------------------------------------------------------------------------------- Python


def _module_of(function: str, root: Path) -> tuple[Path, list[str]]:
    """Split a dotted name into the file of its module and the names within."""
    names = function.split(".")
    for length in range(len(names), 0, -1):
        folder = Path("src", *names[:length])
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if (root / path).is_file():
                return path, names[length:]
    raise Misplaced(f"no module of {function}")


def _edited_python(source: str, names: Sequence[str], mutant: Mutant) -> str:
    scope: ast.AST = _parsed(source)
    for name in names:
        scope = _defined(scope, name, mutant)
    wanted = ast.parse(textwrap.dedent(mutant.find)).body
    found = list(_places(scope, wanted))
    start, end = found[_chosen(len(found), mutant)]
    lines = source.encode().split(b"\n")
    before = b"\n".join([*lines[: start[0] - 1], lines[start[0] - 1][: start[1]]])
    after = b"\n".join([lines[end[0] - 1][end[1] :], *lines[end[0] :]])
    # Statements that replace others are indented as those were.
    indent = " " * start[1]
    put = textwrap.dedent(mutant.replace).strip("\n").replace("\n", f"\n{indent}")
    changed = before + put.encode() + after
    ast.parse(changed)
    return changed.decode()


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _defined(scope: ast.AST, name: str, mutant: Mutant) -> ast.AST:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(scope):
        if isinstance(node, kinds) and node.name == name and node is not scope:
            return node
    raise Misplaced(f"{mutant.name}: no {name} in {mutant.function}")


_Spot = tuple[tuple[int, int], tuple[int, int]]


def _places(scope: ast.AST, wanted: Sequence[ast.stmt]) -> Iterator[_Spot]:
    """Yield the start and end of each occurrence of an expression or of statements."""
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        expression = wanted[0].value
        for node in ast.walk(scope):
            if isinstance(node, type(expression)) and ast.dump(node) == ast.dump(expression):
                yield _span(node, node)
        return
    dumped = [ast.dump(node) for node in wanted]
    for block in _blocks(scope):
        for at in range(len(block) - len(wanted) + 1):
            if [ast.dump(node) for node in block[at : at + len(wanted)]] == dumped:
                yield _span(block[at], block[at + len(wanted) - 1])


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _span(first: ast.stmt | ast.expr, last: ast.stmt | ast.expr) -> _Spot:
    if last.end_lineno is None or last.end_col_offset is None:
        raise Misplaced("the parser gave no end position")
    return (first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset)
