"""The list of every file that is written: no module writes one that is not in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from holdfast import ids, written_files
from holdfast.storage.sqlite import location
from holdfast.written_files import FILES, names_beside

PACKAGE: Final = Path(__file__).parents[1] / "src" / "holdfast"
_FLAGS: Final = {"O_APPEND", "O_CREAT", "O_RDWR", "O_TMPFILE", "O_TRUNC", "O_WRONLY"}
_CALLS: Final = {
    "FileHandler", "FileHistory", "NamedTemporaryFile", "SpooledTemporaryFile",
    "TemporaryDirectory", "TemporaryFile", "copy2", "copyfile", "copytree", "hardlink_to", "link",
    "mkdtemp", "mkstemp", "rename", "symlink", "symlink_to", "touch", "write_bytes", "write_text",
}  # fmt: skip


def _writes(tree: ast.AST) -> Iterator[str]:
    """Yield what in a module creates a file or opens one for writing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {*_FLAGS, "SQLITE_OPEN_READWRITE"}:
            yield node.attr
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if name in _CALLS:
            yield name
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
        texts = [one.value for one in given if isinstance(one, ast.Constant)]
        modes = [one for one in texts if isinstance(one, str) and re.fullmatch("[rwaxbt+]+", one)]
        if name in {"fdopen", "open"} and any(set(mode) & set("wax+") for mode in modes):
            yield f"open {modes}"
        if ast.unparse(function) == "apsw.Connection" and ":memory:" not in texts:
            yield "apsw.Connection"


def _found() -> dict[str, list[str]]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if writes := list(_writes(ast.parse(path.read_text()))):
            found[".".join(path.relative_to(PACKAGE).with_suffix("").parts)] = writes
    return found


def test_every_module_that_writes_a_file_is_listed() -> None:
    """Add what it writes to `written_files.FILES`, with what an erasure does about it."""
    listed = {module for file in FILES for module in file.modules}
    found = _found()
    assert len(found) > 20  # it sees them
    assert {name: writes for name, writes in found.items() if name not in listed} == {}


@pytest.mark.parametrize(
    "code",
    [
        "open(path, 'a')",
        "path.open('r+b')",
        "path.open(mode='wb')",
        "path.write_text(text)",
        "os.open(path, os.O_WRONLY)",
        "tempfile.mkstemp()",
        "FileHistory(path)",
        "apsw.Connection(path)",
    ],
)
def test_what_writes_is_seen(code: str) -> None:
    assert list(_writes(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["open(path)", "path.open('rb')", "os.open(path, os.O_RDONLY)", "apsw.Connection(':memory:')"],
)
def test_what_only_reads_is_not(code: str) -> None:
    assert not list(_writes(ast.parse(code)))


@pytest.mark.parametrize(
    "name",
    [
        "a+b.db",
        "a+b.db-wal",
        "a+b.db-journal",
        "a+b.db-search",
        "a+b.db-search-wal",
        "a+b.db-search.12",
        "a+b.db.before-3",
        "a+b.db.before-3.2-journal",
    ],
)
def test_what_erasure_has_to_empty_is_searched(name: str) -> None:
    assert names_beside("a+b.db", "wiped", "deleted").fullmatch(name)
    assert not names_beside("a+b.db", "kept").fullmatch(name)


@pytest.mark.parametrize("name", ["aab.db", "a+b.db2", "x.jsonl", "a+b.db-shm", "other.db-wal"])
def test_what_is_not_the_stores_is_not(name: str) -> None:
    assert not names_beside("a+b.db", "wiped", "deleted", "kept").fullmatch(name)


def test_names_are_those_that_are_made() -> None:
    assert re.fullmatch(written_files.ID, ids.session_id())
    for tenant in (1, 2, 30):
        assert re.fullmatch(written_files.SEARCH_INDEX, location.search_suffix(tenant))
    empty = names_beside("a.db", "no text")
    assert all(
        empty.fullmatch(f"a.db{one}") for one in location.COMPANION_SUFFIXES if one != "-wal"
    )
