"""The promise and the list of attacks name their tests: each of them must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFORMANCE = ROOT / "src/holdfast/testing"
PAGES = ("promise.md", "security.md")


def _references(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"`([\w/]+\.py)::(\w+)`", text)


def _file(name: str) -> Path:
    return (CONFORMANCE if name.startswith("conformance/") else ROOT) / name


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_tests(page: str) -> None:
    """A page that names none would prove nothing."""
    assert len(_references(page)) > 20


def test_every_file_of_attacks_is_in_the_list() -> None:
    """An attack that the list does not name is one that no reader knows was tried."""
    named = {name for name, _ in _references("security.md")}
    files = (ROOT / "tests/security").glob("test_*.py")
    assert {str(file.relative_to(ROOT)) for file in files} <= named


@pytest.mark.parametrize(
    ("name", "test"), dict.fromkeys(one for page in PAGES for one in _references(page))
)
def test_a_named_test_exists(name: str, test: str) -> None:
    """The file defines a test of this name."""
    text = _file(name).read_text("utf-8")
    assert re.search(rf"^\s*(def {test}\(|class {test}\b|{test} = )", text, re.MULTILINE)
