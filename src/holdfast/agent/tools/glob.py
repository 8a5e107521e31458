"""Glob patterns: `*`, `?`, `**` for any folders, and `{a,b}` for alternatives.

Patterns are untrusted: they come from a model. Matching uses dynamic programming over the parts of
the path, so that the worst pattern costs no more than length times length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.agent.tools.function_tools import ToolError

_MAX_PATTERN_CHARS: Final = 500
_MAX_ALTERNATIVES: Final = 64


def matcher(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Return a predicate for paths, each given as its sequence of names.

    A pattern without a slash matches the last name in any folder; with one, the whole path.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ToolError(
            f"the pattern is too long: at most {_MAX_PATTERN_CHARS} characters are allowed."
        )
    chosen = [choice.strip("/").removeprefix("./").split("/") for choice in _choices(pattern)]
    patterns = [["**", *parts] if len(parts) == 1 else parts for parts in chosen]
    return lambda names: any(_path_fits(parts, names) for parts in patterns)


def _choices(pattern: str) -> list[str]:
    """Expand the alternatives in braces."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(waiting) + len(done) > _MAX_ALTERNATIVES:
            raise ToolError(f"the pattern has more than {_MAX_ALTERNATIVES} alternatives.")
        given = waiting.pop()
        end = given.find("}")
        start = given.rfind("{", 0, end) if end >= 0 else -1
        if start < 0:
            done.append(given)
        else:
            parts = given[start + 1 : end].split(",")
            waiting += [given[:start] + part + given[end + 1 :] for part in dict.fromkeys(parts)]
    return done


def _path_fits(parts: Sequence[str], names: Sequence[str]) -> bool:
    """True if all parts match all names; `fits[n]`: the parts so far match the first `n` names."""
    fits = [True] + [False] * len(names)
    for part in parts:
        if part == "**":
            reached = False
            for at, before in enumerate(fits):
                reached = reached or before
                fits[at] = reached
        else:
            fits = [False] + [
                before and _name_fits(part, name) for before, name in zip(fits, names, strict=False)
            ]
    return fits[-1]


def _name_fits(part: str, name: str) -> bool:
    """True if a pattern part matches a name; backtracks only to the last star, so it is fast."""
    at = here = 0
    star, mark = -1, 0
    while here < len(name):
        if at < len(part) and part[at] == "*":
            star, mark = at, here
            at += 1
        elif at < len(part) and part[at] in {"?", name[here]}:
            at += 1
            here += 1
        elif star >= 0:
            mark += 1
            at, here = star + 1, mark
        else:
            return False
    return not part[at:].strip("*")
