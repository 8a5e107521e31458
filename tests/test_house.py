"""Naming and language rules: nouns as module names, one meaning per name, plain technical words.

Whether a sentence reads well cannot be tested. These rules catch what can: gerunds, repeated names,
words of the former private vocabulary, and docstrings that do not state what a function does.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "src" / "holdfast"
_ADAPTERS: Final = PACKAGE / "adapters"

# Words that end like a gerund and are nouns of the field.
_NOUNS: Final = {"docstring", "listing", "pairing", "rendering", "testing"}
# What every package may have, and the folders whose files are named after something elsewhere:
# async twins, the two databases, and the commands.
_USUAL: Final = {"__init__", "__main__", "config", "errors", "protocol", "registry"}
_NAMED_AFTER: Final = ("aio", "cli/commands", "storage/postgres")
_DIALECT: Final = re.compile(
    r"(?<![\"'])\b(burying|bury|doomed|foresee\w*|foresight|foretell|foretold|heirs?|journeys?|letting_go"
    r"|mistrust\w*|somebody|suppose[ds]?|supposing|undisturbed|unhurried|verbs?|whoever)\b(?![\"'])",
    re.IGNORECASE,
)
_OPENERS: Final = re.compile(r"(?:^|[.:;!?]\s+)(Give|Say|Tell|Know)s?\b")


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _docstrings() -> Iterator[tuple[str, str]]:
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = getattr(node, "name", "module")
                yield f"{path.relative_to(ROOT)}: {name}", ast.get_docstring(node) or ""


def test_modules_are_named_by_nouns() -> None:
    gerunds = {path for path in _modules() if path.stem.endswith("ing")}
    assert not [str(path) for path in gerunds if path.stem not in _NOUNS]


def test_a_module_name_means_one_module() -> None:
    places = defaultdict(list)
    for path in _modules():
        where = path.relative_to(PACKAGE)
        if path.stem not in _USUAL and where.parent.as_posix() not in _NAMED_AFTER:
            places[path.stem].append(where.as_posix())
    assert not [found for found in places.values() if len(found) > 1]


def test_a_public_class_name_means_one_class() -> None:
    """Adapters have the names of their frameworks."""
    places = defaultdict(list)
    for path in _modules():
        if path.is_relative_to(_ADAPTERS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_private_dialect() -> None:
    pages = [
        *_modules(),
        *PACKAGE.rglob("*.sql"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sorted(pages)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in _DIALECT.finditer(line)
    ]
    assert not found


def test_messages_are_written_in_one_place() -> None:
    """The path from a call to the table: one function, one method of each backend, one statement.

    Salvage writes the rows that it rebuilds through the same method.
    """
    calls = re.compile(r"\badd_messages\(|INTO messages\b|\b(?:insert|copy)\(\s*\"messages\"")
    found = {
        path.relative_to(PACKAGE).as_posix(): len(calls.findall(path.read_text()))
        for path in (*_modules(), *PACKAGE.rglob("*.sql"))
    }
    assert {
        where: count
        for where, count in found.items()
        # Adapters have methods of this name, and use the public API alone (import-linter).
        if count and not where.startswith(("adapters/", "testing/")) and "/migrations/" not in where
    } == {
        "operations/append.py": 1,  # store_messages
        "storage/memory.py": 1,
        "storage/protocol.py": 1,
        "storage/postgres/optimistic.py": 2,  # and super()
        "storage/postgres/statements.sql": 2,  # for one message, and for many
        "storage/postgres/transaction.py": 1,
        "storage/sqlite/repair/copy_rows.py": 1,
        "storage/sqlite/statements.sql": 1,
        "storage/sqlite/transaction.py": 1,
    }


def test_docstrings_state_what_is_returned_raised_or_done() -> None:
    assert not [where for where, text in _docstrings() if _OPENERS.search(text)]
