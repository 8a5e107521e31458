"""The promise names its tests: each of them must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFORMANCE = ROOT / "src/holdfast/testing"
REFERENCES = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/promise.md").read_text("utf-8"))


def _file(name: str) -> Path:
    return (CONFORMANCE if name.startswith("conformance/") else ROOT) / name


def test_the_promise_names_tests() -> None:
    """A page that names none would prove nothing."""
    assert len(REFERENCES) > 20


@pytest.mark.parametrize(("name", "test"), REFERENCES)
def test_a_named_test_exists(name: str, test: str) -> None:
    """The file defines a test of this name."""
    text = _file(name).read_text("utf-8")
    assert re.search(rf"^\s*(def {test}\(|class {test}\b|{test} = )", text, re.MULTILINE)
