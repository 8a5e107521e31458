"""Find the secrets in a text, and replace them by marks.

Most text contains no secret, so fast substring searches come first: for runs of 20 characters of
the alphabet of keys, and for the anchor words of the detectors. Patterns are tried only at these
offsets.

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
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from holdfast.errors import BadQuery
from holdfast.transfer.redact.context_patterns import CONTEXT_DETECTORS
from holdfast.transfer.redact.detector import Detector
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
PERSONAL_DETECTORS: Final[Detectors] = (
    Detector(
        name="email",
        finds="E-mail addresses",
        pattern=re.compile(_EMAIL, re.ASCII),
        accepts=accept_any,
        whole_match=True,
        default=False,
    ),
    Detector(
        name="phone",
        finds="Phone numbers",
        pattern=re.compile(f"(?P<number>{_PHONE})", re.ASCII),
        accepts=is_phone,
        whole_match=True,
        default=False,
    ),
)

CATALOGUE: Final[Detectors] = (*KEY_DETECTORS, *CONTEXT_DETECTORS, *PERSONAL_DETECTORS)
ALL_NAMES: Final = tuple(detector.name for detector in CATALOGUE)
DEFAULT_NAMES: Final = tuple(detector.name for detector in CATALOGUE if detector.default)

_BY_NAME: Final = {detector.name: detector for detector in CATALOGUE}
_MIN_TEXT_LENGTH: Final = 6
_MAX_PASSES: Final = 6  # Only text crafted for it would need more.
_LONG_RUN: Final = b"x" * 20
_MAX_PREFIX_DISTANCE: Final = 24  # How far before a run its key may begin.
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
_Numbered: TypeAlias = tuple[int, Detector]


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
    """Return the candidates of every detector; they may overlap."""
    plan = _scan_plan(using)
    plain = text.encode("latin-1", "replace")  # One byte per character, so offsets are equal.
    found = list(_prefix_candidates(text, plain, plan))
    if plan.anchors:
        found += _anchor_candidates(text, plain.lower(), plan)
    for number, detector in plan.everywhere:
        for match in detector.pattern.finditer(text):
            if (span := detector.secret_span(match)) is not None:
                found.append((*span, number))
    return found


class _ScanPlan(msgspec.Struct, frozen=True):
    """The detectors with their numbers, by prefix and by anchor word."""

    prefixes: dict[str, list[_Numbered]]
    anchors: dict[bytes, list[_Numbered]]
    everywhere: list[_Numbered]


@lru_cache(maxsize=64)
def _scan_plan(using: Detectors) -> _ScanPlan:
    plan = _ScanPlan({}, {}, [])
    for numbered in enumerate(using):
        detector = numbered[1]
        for start in {start[:_LOOKUP_LENGTH] for start in detector.prefixes}:
            plan.prefixes.setdefault(start, []).append(numbered)
        for anchor in detector.anchors:
            plan.anchors.setdefault(anchor.encode(), []).append(numbered)
        if not detector.prefixes and not detector.anchors:
            plan.everywhere.append(numbered)
    return plan


def _prefix_candidates(text: str, plain: bytes, plan: _ScanPlan) -> Iterator[_Span]:
    """Try detectors with a prefix at each word start close to a long run."""
    if not plan.prefixes:
        return
    done: dict[int, int] = {}
    for offset in _word_offsets(text, plain):
        for start in (text[offset : offset + _LOOKUP_LENGTH], text[offset]):
            for number, detector in plan.prefixes.get(start, ()):
                if offset < done.get(number, 0):
                    continue
                match = detector.pattern.match(text, offset)
                if match is None:
                    continue
                done[number] = match.end()
                if (span := detector.secret_span(match)) is not None:
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
    """Try detectors with anchors at each occurrence of their words."""
    for anchor, numbered in plan.anchors.items():
        at = lower.find(anchor)
        if at < 0:
            continue
        done = dict.fromkeys((number for number, _ in numbered), 0)
        while at >= 0:
            for number, detector in numbered:
                if at < done[number]:
                    continue
                match = detector.pattern.match(text, at)
                if match is None:
                    continue
                if (span := detector.secret_span(match)) is not None:
                    done[number] = span[1]
                    yield *span, number
                elif detector.skip_rejected:
                    done[number] = match.end()
            at = lower.find(anchor, at + len(anchor))
