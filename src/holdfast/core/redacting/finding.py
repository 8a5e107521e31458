"""Where the secrets in a text are, and the text without them.

Most text holds none, so it is asked first, in a few passes that run at the speed of memory, whether
it could: whether there is a run of 20 characters that keys are made of, and whether one of the
words is there that secrets stand behind. Patterns are tried only at these places.

What is found does not overlap: of two that begin at one place the longer counts, and what reaches
into the one before it is joined to it, so that nothing of either is left. What is left is looked
through once more with the marks in place, because a mark ends a word where a secret did not. So
redacting twice changes nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from holdfast.core.redacting.contexts import CONTEXTS
from holdfast.core.redacting.detector import Detector
from holdfast.core.redacting.keys import KEYS
from holdfast.core.redacting.personal import PERSONAL
from holdfast.errors import BadQuery

Detectors: TypeAlias = tuple[Detector, ...]

CATALOGUE: Final[Detectors] = (*KEYS, *CONTEXTS, *PERSONAL)
ALL: Final = tuple(detector.name for detector in CATALOGUE)
DEFAULT: Final = tuple(detector.name for detector in CATALOGUE if detector.default)

_BY_NAME: Final = {detector.name: detector for detector in CATALOGUE}
_SHORTEST: Final = 6
_PASSES: Final = 6  # Text that needs more was made for it.
_RUN: Final = b"x" * 20
_BEFORE_RUN: Final = 24  # how far before a run the key may begin that it is part of
_START: Final = 3  # how many characters of a beginning it is looked up by
# A word, where keys begin, and what of it belongs to an escape before it, in JSON, in a URL or on a
# terminal: `\\n`, `\\u003d`, `%3D`, `ESC[31m`; or to what makes it slanted: `_`.
_WORD: Final = re.compile(
    r"(?<![A-Za-z0-9_])"
    r"((?<=\\)(?:u[0-9A-Fa-f]{4}|[nrtbf])|(?<=%)[0-9A-Fa-f]{2}|(?<=[\[;])\d{0,2}m|_{1,3})?"
    r"[A-Za-z0-9_]++",
    re.ASCII,
)
_RUNS: Final = bytes(
    ord("x") if chr(code).isascii() and (chr(code).isalnum() or chr(code) in "_-") else ord(" ")
    for code in range(256)
)


class Found(msgspec.Struct, frozen=True):
    """A secret in a text: what found it, and from where to where it goes."""

    detector: str
    start: int
    end: int


def detectors(names: Iterable[str] = DEFAULT) -> Detectors:
    """Return the detectors with these names, each once, in the order of the catalogue."""
    wanted = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in wanted if name not in _BY_NAME]
    if unknown:
        raise BadQuery(
            f"there is no detector {', '.join(map(repr, unknown))}; there are: {', '.join(ALL)}."
        )
    return tuple(detector for detector in CATALOGUE if detector.name in wanted)


def find(text: str, using: Detectors) -> list[Found]:
    """Find the secrets in a text, in their order; they do not overlap."""
    if len(text) < _SHORTEST:
        return []
    spans = _joined(_candidates(text, using))
    for _ in range(_PASSES):
        if not spans:
            break
        further = _behind_marks(text, spans, using)
        if not further:
            break
        spans = _joined([*spans, *further])
    return [Found(using[number].name, start, end) for start, end, number in spans]


def redact_text(text: str, using: Detectors) -> tuple[str, list[Found]]:
    """Return a text with a mark in place of each secret, and what was found."""
    found = find(text, using)
    return (marked(text, found), found) if found else (text, found)


def marked(text: str, found: Sequence[Found]) -> str:
    """Put a mark in place of each that was found."""
    pieces, done = [], 0
    for one in found:
        pieces += [text[done : one.start], _BY_NAME[one.detector].mark]
        done = one.end
    return "".join([*pieces, text[done:]])


# ------------------------------------------------------------------------------------ candidates

_Span: TypeAlias = tuple[int, int, int]  # from where, to where, the number of the detector
_Numbered: TypeAlias = tuple[int, Detector]


def _joined(candidates: Iterable[_Span]) -> list[_Span]:
    """Choose the leftmost and longest, and join to each what begins inside it."""
    kept: list[_Span] = []
    for start, end, number in sorted(candidates, key=lambda span: (span[0], -span[1], span[2])):
        if kept and start < kept[-1][1]:
            first, last, by = kept[-1]
            kept[-1] = first, max(last, end), by
        else:
            kept.append((start, end, number))
    return kept


def _behind_marks(text: str, spans: Sequence[_Span], using: Detectors) -> list[_Span]:
    """Find what only shows when marks stand in place of these spans; in places of the text."""
    found = [Found(using[number].name, start, end) for start, end, number in spans]
    places = _Places(found)
    return [
        (places.start(start), places.end(end), number)
        for start, end, number in _candidates(marked(text, found), using)
    ]


class _Places:
    """Says where in the text a place in the marked text is; a mark is all of its secret."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._marks: list[tuple[int, int, Found]] = []
        shift = 0
        for one in found:
            length = len(_BY_NAME[one.detector].mark)
            self._marks.append((one.start + shift, one.start + shift + length, one))
            shift += length - (one.end - one.start)

    def start(self, place: int) -> int:
        """Return the place of a beginning."""
        begin, end, one = self._before(place)
        return one.start if begin <= place < end else place - end + one.end

    def end(self, place: int) -> int:
        """Return the place of an end."""
        begin, end, one = self._before(place)
        return one.end if begin < place <= end else place - end + one.end

    def _before(self, place: int) -> tuple[int, int, Found]:
        at = bisect_right(self._marks, place, key=lambda mark: mark[0]) - 1
        return self._marks[at] if at >= 0 else (0, 0, Found("", 0, 0))


def _candidates(text: str, using: Detectors) -> list[_Span]:
    """Find what each detector would, also where they overlap."""
    plan = _plan(using)
    plain = text.encode("latin-1", "replace")  # one byte for one character
    found = list(_keys(text, plain, plan))
    if plan.anchors:
        found += _in_context(text, plain.lower(), plan)
    for number, detector in plan.everywhere:
        for match in detector.pattern.finditer(text):
            if (span := detector.judge(match)) is not None:
                found.append((*span, number))
    return found


class _Plan(msgspec.Struct, frozen=True):
    """Where to look for what: detectors, with their numbers, by beginning and by word."""

    starts: dict[str, list[_Numbered]]
    anchors: dict[bytes, list[_Numbered]]
    everywhere: list[_Numbered]


@lru_cache(maxsize=64)
def _plan(using: Detectors) -> _Plan:
    plan = _Plan({}, {}, [])
    for numbered in enumerate(using):
        detector = numbered[1]
        for start in {start[:_START] for start in detector.starts}:
            plan.starts.setdefault(start, []).append(numbered)
        for anchor in detector.anchors:
            plan.anchors.setdefault(anchor.encode(), []).append(numbered)
        if not detector.starts and not detector.anchors:
            plan.everywhere.append(numbered)
    return plan


def _keys(text: str, plain: bytes, plan: _Plan) -> Iterator[_Span]:
    """Try, at the beginning of each word close to a long run, the keys that begin so."""
    if not plan.starts:
        return
    done: dict[int, int] = {}
    for place in _beginnings(text, plain):
        for start in (text[place : place + _START], text[place]):
            for number, detector in plan.starts.get(start, ()):
                if place < done.get(number, 0):
                    continue
                match = detector.pattern.match(text, place)
                if match is None:
                    continue
                done[number] = match.end()
                if (span := detector.judge(match)) is not None:
                    yield *span, number


def _beginnings(text: str, plain: bytes) -> Iterator[int]:
    """Return where words begin, in and close before long runs, also behind what is escaped."""
    seen = 0
    for begin, end in _runs(plain):
        for word in _WORD.finditer(text, max(seen, begin - _BEFORE_RUN), end):
            seen = word.end()
            yield word.start()
            if word[1]:
                yield word.end(1)


def _runs(plain: bytes) -> Iterator[tuple[int, int]]:
    """Return the long runs of characters that keys are made of."""
    kinds = plain.translate(_RUNS)
    end = 0
    while (begin := kinds.find(_RUN, end)) >= 0:
        end = kinds.find(b" ", begin + len(_RUN))
        if end < 0:
            end = len(kinds)
        yield begin, end


def _in_context(text: str, lower: bytes, plan: _Plan) -> Iterator[_Span]:
    """Try, at each of the words, the detectors that have it."""
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
                if (span := detector.judge(match)) is not None:
                    done[number] = span[1]
                    yield *span, number
                elif detector.once:
                    done[number] = match.end()
            at = lower.find(anchor, at + len(anchor))
