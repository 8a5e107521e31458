"""A detector: the pattern and rules that find one kind of secret.

Patterns are slow and substring searches are fast, so a pattern is tried only where it can match.
A detector declares where, in one of three ways:

* `prefixes`: the secret begins with one of these at the start of a word, and contains or closely
  precedes a run of 20 letters, digits, `-` or `_`. Prefixes are searched only near such runs. A
  prefix has one character, or three and more.
* `anchors`: the pattern is tried at each occurrence of these words, in any case: `password`.
* neither: the pattern is searched everywhere. Only for detectors that are not on by default.

The secret is the whole match for a key, and the last group that matched for a secret found by its
context. It is a finding only if `accepts` is true for that group. Matching must take linear time:
repetitions are possessive or bounded, or else `skip_rejected` prevents a rejected match from being
scanned again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.transfer.redact.plausibility import is_random

MARK: Final = "[redacted: "

_BARE_GROUPS: Final = frozenset({"bare", "option"})
WORD_END: Final = r"(?![A-Za-z0-9_-])"


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """Finds one kind of secret.

    `accepts` decides on the matched group; `accepts_bare`, if set, on a group without quotes. The
    secret extends as far as `continuation` matches after it, because groups are bounded and secrets
    are not. With `skip_rejected`, the search resumes after a rejected match.
    """

    name: str
    finds: str
    pattern: re.Pattern[str]
    prefixes: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    accepts: Callable[[str], bool] = is_random
    accepts_bare: Callable[[str], bool] | None = None
    continuation: re.Pattern[str] | None = None
    whole_match: bool = False
    skip_rejected: bool = False
    default: bool = True

    @property
    def mark(self) -> str:
        """The text that replaces the secret."""
        return f"{MARK}{self.name.replace('-', ' ')}]"

    def secret_span(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Return start and end of the secret in a match; `None` if it is rejected."""
        group = match.lastindex or 0
        bare = self.accepts_bare if match.lastgroup in _BARE_GROUPS else None
        if not (bare or self.accepts)(match[group]):
            return None
        start, end = match.span() if self.whole_match else match.span(group)
        more = None if self.continuation is None else self.continuation.match(match.string, end)
        return start, end if more is None else more.end()


def prefixed(
    name: str,
    finds: str,
    starts: str | tuple[str, ...],
    pattern: str,
    accepts: Callable[[str], bool] = is_random,
) -> Detector:
    """Return a detector for keys with a known prefix."""
    return Detector(
        name=name,
        finds=finds,
        prefixes=(starts,) if isinstance(starts, str) else starts,
        pattern=re.compile(pattern, re.ASCII),
        accepts=accepts,
        whole_match=True,
        skip_rejected=True,
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
    """Return a detector that is tried at each of these words, which are given in lower case."""
    return Detector(
        name=name,
        finds=finds,
        anchors=anchors,
        pattern=re.compile(pattern, re.ASCII | re.IGNORECASE),
        accepts=accepts,
        accepts_bare=accepts_bare,
        continuation=None if rest is None else re.compile(rest, re.ASCII),
        whole_match=whole,
        skip_rejected=once,
    )
