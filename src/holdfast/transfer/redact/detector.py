"""A detector: a named kind of secret, and the rules that find it.

Patterns are slow and substring searches are fast, so a pattern is tried only where it can match.
A rule declares where, in one of three ways:

* `prefixes`: the secret begins with one of these at the start of a word, and contains or closely
  precedes a run of 20 letters, digits, `-` or `_`. Prefixes are searched only near such runs. A
  prefix has one character, or three and more. With `accepts_glued`, also inside a
  word (`myAKIA…`).
* `anchors`: the pattern is tried at each occurrence of these words, in any case (`password`), or
  `reach` characters before it.
* neither: the pattern is searched everywhere. Only for detectors that are not on by default.

The secret is the whole match for a key, and the last group that matched for a secret found by its
context. It is a finding only if `accepts` is true for that group. Matching must take linear time:
repetitions are possessive or bounded, or else `skip_rejected` prevents a rejected match from being
scanned again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from holdfast.transfer.redact.plausibility import is_random

MARK: Final = "[redacted: "

_BARE_GROUPS: Final = frozenset({"bare", "option"})
_MAX_LINE_START: Final = 256  # How much of a line before an anchor `before` may match.

Accepts: TypeAlias = Callable[[str], bool]
Spans: TypeAlias = Iterable[tuple[int, int]]


class SecretRule(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a pattern is tried, and which matches are secrets.

    `accepts` decides on the matched group; `accepts_bare`, if set, on a group without quotes;
    `accepts_glued` on a key inside a word, which is searched only if it is set.
    `before` must match from the start of the line up to the match. The secret extends as far as
    `continuation` matches after it, because groups are bounded and secrets are not. `cells`
    replaces all this for a match with several candidates. With `skip_rejected`, the search resumes
    after a rejected match.
    """

    pattern: re.Pattern[str]
    prefixes: tuple[str, ...] = ()
    accepts_glued: Accepts | None = None
    anchors: tuple[str, ...] = ()
    reach: int = 0
    before: re.Pattern[str] | None = None
    accepts: Accepts = is_random
    accepts_bare: Accepts | None = None
    cells: Callable[[re.Match[str]], Spans] | None = None
    continuation: re.Pattern[str] | None = None
    whole_match: bool = False
    skip_rejected: bool = False

    def secret_spans(self, match: re.Match[str], *, glued: bool = False) -> Spans:
        """Return start and end of each secret in a match; none if it is rejected."""
        if self.before is not None and not self.before.fullmatch(_line_start(match)):
            return ()
        if self.cells is not None:
            return self.cells(match)
        group = match.lastindex or 0
        special = self.accepts_bare if match.lastgroup in _BARE_GROUPS else None
        if not ((self.accepts_glued if glued else special) or self.accepts)(match[group]):
            return ()
        start, end = match.span() if self.whole_match else match.span(group)
        more = None if self.continuation is None else self.continuation.match(match.string, end)
        return ((start, end if more is None else more.end()),)


def _line_start(match: re.Match[str]) -> str:
    r"""Return the line before a match, or the last part of it; `\n` ends a line, too."""
    end = match.start()
    line = match.string[max(0, end - _MAX_LINE_START) : end]
    return line[max(line.rfind("\n") + 1, line.rfind("\\n") + 2 if "\\n" in line else 0) :]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of secret: its name, what it finds, and its rules."""

    name: str
    finds: str
    rules: tuple[SecretRule, ...]
    default: bool = True

    @property
    def mark(self) -> str:
        """The text that replaces the secret."""
        return f"{MARK}{self.name.replace('-', ' ')}]"


def prefixed(
    starts: str | tuple[str, ...],
    pattern: str,
    accepts: Accepts = is_random,
    *,
    glued: Accepts | None = None,
) -> SecretRule:
    """Return a rule for keys with a known prefix."""
    return SecretRule(
        prefixes=(starts,) if isinstance(starts, str) else starts,
        accepts_glued=glued,
        pattern=re.compile(pattern, re.ASCII),
        accepts=accepts,
        whole_match=True,
        skip_rejected=True,
    )


def anchored(
    anchors: tuple[str, ...],
    pattern: str,
    accepts: Accepts,
    *,
    accepts_bare: Accepts | None = None,
    before: str | None = None,
    rest: str | None = None,
    reach: int = 0,
    whole: bool = False,
    once: bool = False,
) -> SecretRule:
    """Return a rule that is tried at each of these words, which are given in lower case."""
    flags = re.ASCII | re.IGNORECASE
    return SecretRule(
        anchors=anchors,
        reach=reach,
        pattern=re.compile(pattern, flags),
        accepts=accepts,
        accepts_bare=accepts_bare,
        before=None if before is None else re.compile(before, flags),
        continuation=None if rest is None else re.compile(rest, re.ASCII),
        whole_match=whole,
        skip_rejected=once,
    )
