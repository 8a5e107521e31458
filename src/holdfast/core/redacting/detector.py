"""What finds one kind of secret.

A detector is tried only where it can match, because patterns are slow and looking for a word is
fast. There are three ways to say where that is:

* `starts`: a key begins with one of these, at the beginning of a word, and has a run of 20 letters,
  digits, `-` or `_` in it or close behind its beginning. Where there is no such run, nobody looks
  for beginnings. They have three characters or more, or one.
* `anchors`: the pattern is tried at each of these words, whatever their case; `password`.
* neither: the pattern is looked for everywhere. Only for what is asked for.

The secret is the whole match for a key, and the last group that matched for what is told by its
context. It counts if that group is accepted. No pattern may take longer than its text is long:
repetitions are possessive or bounded, and where they are not, what was refused is not looked into
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.core.redacting.judging import is_random

MARK: Final = "[redacted: "

_BARE: Final = frozenset({"bare", "option"})
RIGHT: Final = r"(?![A-Za-z0-9_-])"


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of secret: its name, what it finds, and how.

    `accepts` judges the group; `accepts_bare` one that is not in quotes, if it is to be judged
    otherwise. A secret goes on as far as `rest` matches: groups are bounded, secrets are not.
    What one that looks `once` has refused is not looked into again.
    """

    name: str
    finds: str
    pattern: re.Pattern[str]
    starts: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    accepts: Callable[[str], bool] = is_random
    accepts_bare: Callable[[str], bool] | None = None
    rest: re.Pattern[str] | None = None
    whole: bool = False
    once: bool = False
    default: bool = True

    @property
    def mark(self) -> str:
        """What stands in the place of such a secret."""
        return f"{MARK}{self.name.replace('-', ' ')}]"

    def judge(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Return where the secret is in a match; None if there is none."""
        group = match.lastindex or 0
        bare = self.accepts_bare if match.lastgroup in _BARE else None
        if not (bare or self.accepts)(match[group]):
            return None
        start, end = match.span() if self.whole else match.span(group)
        more = None if self.rest is None else self.rest.match(match.string, end)
        return start, end if more is None else more.end()


def prefixed(
    name: str,
    finds: str,
    starts: str | tuple[str, ...],
    pattern: str,
    accepts: Callable[[str], bool] = is_random,
) -> Detector:
    """Make a detector for keys that begin in a known way."""
    return Detector(
        name=name,
        finds=finds,
        starts=(starts,) if isinstance(starts, str) else starts,
        pattern=re.compile(pattern, re.ASCII),
        accepts=accepts,
        whole=True,
        once=True,
    )


def anchored(
    name: str,
    finds: str,
    anchors: tuple[str, ...],
    pattern: str,
    accepts: Callable[[str], bool],
    *,
    accepts_bare: Callable[[str], bool] | None = None,
    rest: str | None = None,
    whole: bool = False,
    once: bool = False,
) -> Detector:
    """Make a detector that is tried where one of these words, in lower case, stands."""
    return Detector(
        name=name,
        finds=finds,
        anchors=anchors,
        pattern=re.compile(pattern, re.ASCII | re.IGNORECASE),
        accepts=accepts,
        accepts_bare=accepts_bare,
        rest=None if rest is None else re.compile(rest, re.ASCII),
        whole=whole,
        once=once,
    )
