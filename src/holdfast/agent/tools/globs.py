"""Names by pattern: `*`, `?`, `**` for any folders, and `{a,b}` for a choice. Nothing is slow.

Patterns come from a model. Matching compares a path with a pattern in a table of its parts, so that
the worst of them costs no more than length times length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.agent.tools.functions import ToolError

_LONGEST: Final = 500
_MOST_CHOICES: Final = 64


def matcher(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Make a test for paths, given as the names that lead to them.

    A pattern without a slash is for the last name, wherever it is; with one it is for the path.
    """
    if len(pattern) > _LONGEST:
        raise ToolError(f"a pattern has at most {_LONGEST} characters.")
    chosen = [choice.strip("/").removeprefix("./").split("/") for choice in _choices(pattern)]
    patterns = [["**", *parts] if len(parts) == 1 else parts for parts in chosen]
    return lambda names: any(_path_fits(parts, names) for parts in patterns)


def _choices(pattern: str) -> list[str]:
    """Write out what stands in braces."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(waiting) + len(done) > _MOST_CHOICES:
            raise ToolError(f"a pattern has at most {_MOST_CHOICES} choices.")
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
    """Compare part by part: `fits[n]` says whether the parts so far fit the first `n` names."""
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
    """Compare one name; only the last star is ever tried again, so nothing is tried twice."""
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
