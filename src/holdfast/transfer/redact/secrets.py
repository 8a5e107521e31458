"""Find the secrets in a text, and replace them by marks.

Most text contains no secret, so fast substring searches come first: for runs of 20 characters of
the alphabet of keys, and for the anchor words of the rules. Patterns are tried only at these
offsets. A text with escapes or invisible characters is scanned again without them (`decoded_text`).

Findings do not overlap: of two with the same start the longer one counts, and one that overlaps its
predecessor is merged into it, so that no part of either remains. The text is then scanned again
with the marks inserted, because a mark ends a word where the secret did not. So redacting twice
changes nothing.

Personal data (e-mail addresses and phone numbers) is detected only on request: conversations are
full of both, and most are meant to be there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from holdfast.errors import BadQuery
from holdfast.transfer.redact.context_patterns import CONTEXT_DETECTORS
from holdfast.transfer.redact.decoded_text import decode
from holdfast.transfer.redact.detector import Detector, SecretRule
from holdfast.transfer.redact.key_patterns import KEY_DETECTORS
from holdfast.transfer.redact.plausibility import accept_any, is_phone

Detectors: TypeAlias = tuple[Detector, ...]

_EMAIL: Final = r"(?<![\w.%+-])[\w.%+-]{1,64}+@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])"
# With a plus, an area code in parentheses or a leading zero, or grouped 3-3-4: other digits are not
# recognisable as a phone number.
_PHONE: Final = (
    r"(?<![\w.+/-])(?:\+\d(?:[ .()/-]{0,2}\d){8,14}"
    r"|\(\d{2,5}\)[ .-]?\d{2,4}(?:[ .-]?\d{2,4}){1,3}"
    r"|\d{3}([-. ])\d{3}\2\d{4}"
    r"|0\d{2,4}[ /-]\d{3,8}(?:[ -]\d{2,4}){0,3})(?![\w-])"
)


def _personal(name: str, finds: str, pattern: str, accepts: Callable[[str], bool]) -> Detector:
    rule = SecretRule(pattern=re.compile(pattern, re.ASCII), accepts=accepts, whole_match=True)
    return Detector(name=name, finds=finds, rules=(rule,), default=False)


PERSONAL_DETECTORS: Final[Detectors] = (
    _personal("email", "E-mail addresses", _EMAIL, accept_any),
    _personal("phone", "Phone numbers", f"(?P<number>{_PHONE})", is_phone),
)

CATALOGUE: Final[Detectors] = (*KEY_DETECTORS, *CONTEXT_DETECTORS, *PERSONAL_DETECTORS)
ALL_NAMES: Final = tuple(detector.name for detector in CATALOGUE)
DEFAULT_NAMES: Final = tuple(detector.name for detector in CATALOGUE if detector.default)

_BY_NAME: Final = {detector.name: detector for detector in CATALOGUE}
_MIN_TEXT_LENGTH: Final = 6
_MAX_PASSES: Final = 6  # Only text crafted for it would need more.
_WHOLE_WORD: Final = re.compile(r"[A-Z]?[a-z]+")
_LONG_RUN: Final = b"x" * 20
_MAX_PREFIX_DISTANCE: Final = 48  # How far before a run its key may begin.
_LOOKUP_LENGTH: Final = 3  # How many characters of a prefix detectors are looked up by.
# A word, where a key may begin. The group is what belongs to an escape before it, in JSON, in a URL
# or on a terminal (`\\n`, `\\u003d`, `%3D`, `ESC[31m`), or to Markdown emphasis (`_`).
_WORD: Final = re.compile(
    r"(?<![A-Za-z0-9_])"
    r"((?<=\\)(?:u[0-9A-Fa-f]{4}|[nrtbf])|(?<=%)[0-9A-Fa-f]{2}|(?<=[\[;])\d{0,2}m|_{1,3})?"
    r"[A-Za-z0-9_]++",
    re.ASCII,
)
_RUN_TABLE: Final = bytes(
    ord("x") if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "_-") else ord(" ")
    for code in range(256)
)


class SecretSpan(msgspec.Struct, frozen=True):
    """A secret in a text: its detector and its offsets."""

    detector: str
    start: int
    end: int


def detectors_named(names: Iterable[str] = DEFAULT_NAMES) -> Detectors:
    """Return the detectors with these names, each once, in the order of the catalogue."""
    listed = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in listed if name not in _BY_NAME]
    if unknown:
        raise BadQuery(
            f"there is no detector {', '.join(map(repr, unknown))}; there are: "
            f"{', '.join(ALL_NAMES)}."
        )
    return tuple(detector for detector in CATALOGUE if detector.name in listed)


def find_secrets(text: str, using: Detectors) -> list[SecretSpan]:
    """Return the secrets in a text, in order and without overlaps."""
    if len(text) < _MIN_TEXT_LENGTH:
        return []
    spans = _merge_overlaps(_candidates(text, using))
    for _ in range(_MAX_PASSES):
        if not spans:
            break
        further = _find_with_marks(text, spans, using)
        if not further:
            break
        spans = _merge_overlaps([*spans, *further])
    return [SecretSpan(using[number].name, start, end) for start, end, number in spans]


def find_in_row(texts: Sequence[str], using: Detectors, joint: str = "") -> list[list[SecretSpan]]:
    """Return the secrets in each of several texts, also those that one ends and the next continues.

    `joint` is what is between two texts.
    """
    found = [find_secrets(text, using) for text in texts]
    if len(texts) > 1:
        starts = [0, *accumulate(len(text) + len(joint) for text in texts)]
        for one in find_secrets(joint.join(texts), using):
            first = bisect_right(starts, one.start) - 1
            whole = any(own.end == len(texts[first]) for own in found[first])
            for at in range(first, len(texts)):
                start, end = (
                    max(one.start - starts[at], 0),
                    min(one.end - starts[at], len(texts[at])),
                )
                # A key at the end of a text does not continue with the word that begins the next.
                if start >= end or (
                    at > first and whole and _WHOLE_WORD.fullmatch(texts[at][start:end])
                ):
                    break
                found[at].append(SecretSpan(one.detector, start, end))
    return [_merge_found(spans) for spans in found]


def _merge_found(found: list[SecretSpan]) -> list[SecretSpan]:
    kept: list[SecretSpan] = []
    for one in sorted(found, key=lambda span: (span.start, -span.end)):
        if kept and one.start < kept[-1].end:
            kept[-1] = SecretSpan(kept[-1].detector, kept[-1].start, max(kept[-1].end, one.end))
        else:
            kept.append(one)
    return kept


def redact_text(text: str, using: Detectors) -> tuple[str, list[SecretSpan]]:
    """Return a text with each secret replaced by its mark, and the secrets found."""
    found = find_secrets(text, using)
    return (insert_marks(text, found), found) if found else (text, found)


def insert_marks(text: str, found: Sequence[SecretSpan]) -> str:
    """Return a text with each of these secrets replaced by its mark."""
    pieces, done = [], 0
    for one in found:
        pieces += [text[done : one.start], _BY_NAME[one.detector].mark]
        done = one.end
    return "".join([*pieces, text[done:]])


# ------------------------------------------------------------------------------------ candidates

_Span: TypeAlias = tuple[int, int, int]  # Start, end, number of the detector.
_Numbered: TypeAlias = tuple[int, SecretRule]  # The number of its detector.


def _merge_overlaps(candidates: Iterable[_Span]) -> list[_Span]:
    """Sort candidates, leftmost and longest first, and merge those that overlap."""
    kept: list[_Span] = []
    for start, end, number in sorted(candidates, key=lambda span: (span[0], -span[1], span[2])):
        if kept and start < kept[-1][1]:
            first, last, by = kept[-1]
            kept[-1] = first, max(last, end), by
        else:
            kept.append((start, end, number))
    return kept


def _find_with_marks(text: str, spans: Sequence[_Span], using: Detectors) -> list[_Span]:
    """Return candidates that match only with marks in place of `spans`, as offsets in `text`."""
    found = [SecretSpan(using[number].name, start, end) for start, end, number in spans]
    offsets = _OffsetMap(found)
    return [
        (offsets.start(start), offsets.end(end), number)
        for start, end, number in _candidates(insert_marks(text, found), using)
    ]


class _OffsetMap:
    """Maps offsets in the marked text to the original; inside a mark, to its whole secret."""

    def __init__(self, found: Sequence[SecretSpan]) -> None:
        self._marks: list[tuple[int, int, SecretSpan]] = []
        shift = 0
        for one in found:
            length = len(_BY_NAME[one.detector].mark)
            self._marks.append((one.start + shift, one.start + shift + length, one))
            shift += length - (one.end - one.start)

    def start(self, offset: int) -> int:
        """Return the original offset of a candidate's start."""
        begin, end, one = self._before(offset)
        return one.start if begin <= offset < end else offset - end + one.end

    def end(self, offset: int) -> int:
        """Return the original offset of a candidate's end."""
        begin, end, one = self._before(offset)
        return one.end if begin < offset <= end else offset - end + one.end

    def _before(self, offset: int) -> tuple[int, int, SecretSpan]:
        at = bisect_right(self._marks, offset, key=lambda mark: mark[0]) - 1
        return self._marks[at] if at >= 0 else (0, 0, SecretSpan("", 0, 0))


def _candidates(text: str, using: Detectors) -> list[_Span]:
    """Return the candidates of every detector, also in the decoded text; they may overlap."""
    plan = _scan_plan(using)
    found = _scan(text, plan)
    decoded = decode(text)
    if decoded is not None:
        found += [
            (decoded.start(start), decoded.end(end), number)
            for start, end, number in _scan(decoded.text, plan)
        ]
    return found


def _scan(text: str, plan: _ScanPlan) -> list[_Span]:
    plain = text.encode("latin-1", "replace")  # One byte per character, so offsets are equal.
    found = list(_prefix_candidates(text, plain, plan))
    if plan.anchors:
        found += _anchor_candidates(text, plain.lower(), plan)
    for number, rule in plan.everywhere:
        for match in rule.pattern.finditer(text):
            found += [(*span, number) for span in rule.secret_spans(match)]
    return found


class _ScanPlan(msgspec.Struct, frozen=True):
    """The rules with the numbers of their detectors, by prefix and by anchor word."""

    prefixes: dict[str, list[_Numbered]]
    glued: dict[str, list[tuple[str, _Numbered]]]  # By the end of the prefix.
    glued_end: re.Pattern[str]
    anchors: dict[bytes | str, list[_Numbered]]
    everywhere: list[_Numbered]


@lru_cache(maxsize=64)
def _scan_plan(using: Detectors) -> _ScanPlan:
    rules = [(number, rule) for number, detector in enumerate(using) for rule in detector.rules]
    glued = [one for _, rule in rules if rule.accepts_glued is not None for one in rule.prefixes]
    names = sorted(start for start in glued if start[-1] not in "_-")
    plan = _ScanPlan({}, {}, re.compile("|".join(["[_-]", *names])), {}, [])
    for numbered in rules:
        _add_to_plan(plan, numbered)
    return plan


def _add_to_plan(plan: _ScanPlan, numbered: _Numbered) -> None:
    rule = numbered[1]
    for start in {start[:_LOOKUP_LENGTH] for start in rule.prefixes}:
        plan.prefixes.setdefault(start, []).append(numbered)
    if rule.accepts_glued is not None:
        for start in rule.prefixes:
            plan.glued.setdefault(start[-_LOOKUP_LENGTH:], []).append((start, numbered))
    for anchor in rule.anchors:
        word = anchor.encode("latin-1") if max(anchor) <= "\xff" else anchor
        plan.anchors.setdefault(word, []).append(numbered)
    if not rule.prefixes and not rule.anchors:
        plan.everywhere.append(numbered)


def _prefix_candidates(text: str, plain: bytes, plan: _ScanPlan) -> Iterator[_Span]:
    """Try rules with a prefix at each word start close to a long run, and inside the run."""
    if not plan.prefixes:
        return
    done: dict[int, int] = {}
    for offset in _word_offsets(text, plain):
        for start in (text[offset : offset + _LOOKUP_LENGTH], text[offset]):
            for number, rule in plan.prefixes.get(start, ()):
                yield from _try_prefix(text, offset, (number, rule), done, glued=False)
    for begin, end in _long_runs(plain) if plan.glued else ():
        for mark in plan.glued_end.finditer(text, begin, end):
            last = mark.end()
            for start, numbered in plan.glued.get(text[last - _LOOKUP_LENGTH : last], ()):
                if text.endswith(start, begin, last):
                    yield from _try_prefix(text, last - len(start), numbered, done, glued=True)


def _try_prefix(
    text: str, offset: int, numbered: _Numbered, done: dict[int, int], *, glued: bool
) -> Iterator[_Span]:
    number, rule = numbered
    if offset < done.get(id(rule), 0):
        return
    match = rule.pattern.match(text, offset)
    if match is None:
        return
    if not glued:
        done[id(rule)] = match.end()
    for span in rule.secret_spans(match, glued=glued):
        yield *span, number


def _word_offsets(text: str, plain: bytes) -> Iterator[int]:
    """Return the offsets of words in and just before long runs, also those after an escape."""
    seen = 0
    for begin, end in _long_runs(plain):
        for word in _WORD.finditer(text, max(seen, begin - _MAX_PREFIX_DISTANCE), end):
            seen = word.end()
            yield word.start()
            if word[1]:
                yield word.end(1)


def _long_runs(plain: bytes) -> Iterator[tuple[int, int]]:
    """Return start and end of the long runs of characters that occur in keys."""
    kinds = plain.translate(_RUN_TABLE)
    end = 0
    while (begin := kinds.find(_LONG_RUN, end)) >= 0:
        end = kinds.find(b" ", begin + len(_LONG_RUN))
        if end < 0:
            end = len(kinds)
        yield begin, end


def _anchor_candidates(text: str, lower: bytes, plan: _ScanPlan) -> Iterator[_Span]:
    """Try rules with anchors at each occurrence of their words."""
    for anchor, numbered in plan.anchors.items():
        done = [0] * len(numbered)
        for at in _occurrences(anchor, text, lower):
            for place, (number, rule) in enumerate(numbered):
                if at < done[place] or at < rule.reach:
                    continue
                match = rule.pattern.match(text, at - rule.reach)
                if match is None:
                    continue
                end = match.end() if rule.skip_rejected else 0
                for start, end in rule.secret_spans(match):
                    yield start, end, number
                done[place] = max(done[place], end)


def _occurrences(anchor: bytes | str, text: str, lower: bytes) -> Iterator[int]:
    """Return the offsets of an anchor: bytes in the lower-case text, a word of others as it is."""
    if isinstance(anchor, bytes):
        at = lower.find(anchor)
        while at >= 0:
            yield at
            at = lower.find(anchor, at + len(anchor))
    elif not text.isascii():
        yield from (match.start() for match in re.finditer(anchor, text))
