"""What the docstring of a function tells a model: the first paragraph, and the parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Final

_SECTION: Final = re.compile(r"(?:Args|Arguments|Parameters):")
_ARGUMENT: Final = re.compile(r"\*{0,2}(\w+)(?: ?\([^)]*\))?: *(.*)")


def documented(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a function's docstring, and what it says of each parameter."""
    lines = _docstring(function).splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or _SECTION.fullmatch(line.strip()):
            break
        first.append(line.strip())
    return " ".join(first), _described(lines)


def _described(lines: list[str]) -> dict[str, str]:
    start = next((n for n, line in enumerate(lines) if _SECTION.fullmatch(line.strip())), None)
    if start is None:
        return {}
    outer = _indent(lines[start])
    inner: int | None = None
    about: dict[str, str] = {}
    name: str | None = None
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        if _indent(line) <= outer:
            break
        inner = _indent(line) if inner is None else inner
        found = _ARGUMENT.fullmatch(line.strip()) if _indent(line) == inner else None
        if found is not None:
            name = found[1]
            about[name] = found[2]
        elif name is not None:
            about[name] = f"{about[name]} {line.strip()}".strip()
    return about


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _docstring(function: Callable[..., object]) -> str:
    inner = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(inner):
        return inspect.getdoc(type(inner).__call__) or inspect.getdoc(inner) or ""
    return inspect.getdoc(inner) or ""
