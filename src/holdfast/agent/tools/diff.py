"""Diffs that show the user what a write would change, before it is approved.

Common lines at the beginning and the end are skipped; the rest is compared line by line if it is
short enough. For long texts that differ throughout, all old lines are shown, then all new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

_CONTEXT_LINES: Final = 3
_MAX_COMPARISONS: Final = 250_000  # Old lines times new lines that are compared.
_MAX_SHOWN_CHARS: Final = 12_000


def changes(before: str, after: str) -> str:
    """Return the removed (-) and added (+) lines, with a few lines of context."""
    old, new = _lines(before), _lines(after)
    same = _shared(old, new)
    shared_end = _shared(old[same:][::-1], new[same:][::-1])
    first = max(0, same - _CONTEXT_LINES)
    lines = [f"@@ line {first + 1} @@", *(f" {line}" for line in old[first:same])]
    old_end, new_end = len(old) - shared_end, len(new) - shared_end
    lines += _middle(old[same:old_end], new[same:new_end], same)
    lines += [f" {line}" for line in old[old_end : old_end + _CONTEXT_LINES]]
    return elide_middle("\n".join(lines))


def addition(text: str) -> str:
    """Return the lines of a new file, all of them added (+)."""
    return elide_middle("\n".join(f"+{line}" for line in _lines(text)))


def elide_middle(text: str) -> str:
    """Replace the middle of a long text by a note of how much is not shown."""
    if len(text) <= _MAX_SHOWN_CHARS:
        return text
    half = _MAX_SHOWN_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out:,} characters are not shown here …]\n{text[-half:]}"


def _lines(text: str) -> list[str]:
    """Split a text into lines; a last line without a line end is marked."""
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n\\ no end of line"] if last else lines


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many leading lines are the same in both."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(old), len(new)))


def _middle(old: Sequence[str], new: Sequence[str], start: int) -> Iterator[str]:
    if len(old) * len(new) > _MAX_COMPARISONS:
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from _unchanged(old[a:b], start + a)
        else:
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])


def _unchanged(lines: Sequence[str], start: int) -> Iterator[str]:
    if len(lines) <= 2 * _CONTEXT_LINES:
        yield from (f" {line}" for line in lines)
        return
    yield from (f" {line}" for line in lines[:_CONTEXT_LINES])
    yield f"@@ line {start + len(lines) - _CONTEXT_LINES + 1} @@"
    yield from (f" {line}" for line in lines[-_CONTEXT_LINES:])
