"""As many of the newest blocks as fit.

A window begins with a user's message, and blocks stay whole. When the history outgrows the budget,
the beginning does not move with every message: it moves on in steps, up to a quarter of the window,
so that what a provider has in its cache stays the beginning for many turns.

The newest user's message is always in. If all that follows it is too much, the oldest exchanges
behind it are left out, whole; if the newest exchange alone is, its longest results are shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from holdfast import tokens
from holdfast.core.windows.exchanging import Answer, Block, size
from holdfast.records import File, Raw, Text
from holdfast.tokens import Count, of_text

_WORTH_SHORTENING: Final = 100
_TRIES: Final = 6


class Limits(msgspec.Struct, frozen=True):
    """How much may be in a window, and how the tokens of a text are counted."""

    tokens: int | None
    messages: int | None
    count: Count = of_text

    def less(self, blocks: Sequence[Block]) -> Limits:
        """Return what is left beside these blocks."""
        used, many = self.cost_of(blocks), sum(map(size, blocks))
        return Limits(
            None if self.tokens is None else max(0, self.tokens - used),
            None if self.messages is None else max(0, self.messages - many),
            self.count,
        )

    def cost_of(self, blocks: Iterable[Block]) -> int:
        """Return how many tokens these have."""
        return sum(cost(block, self.count) for block in blocks)


class Fitted(msgspec.Struct, frozen=True):
    """The blocks that are in, those that are out, and what to tell. `full`: more did not fit."""

    blocks: list[Block]
    out: list[Block]
    notes: list[str]
    full: bool


def cost(block: Block, count: Count) -> int:
    """Return how many tokens a block has; its results are all there."""
    if block.tokens is None:
        stored = block.said.tokens if count is of_text else None
        said = tokens.of_message(block.said, count) if stored is None else stored
        answers = (answer for answer in block.results.values() if answer is not None)
        block.tokens = said + sum(_of_answer(answer, count) for answer in answers)
    return block.tokens


def _of_answer(answer: Answer, count: Count) -> int:
    stored = answer.tokens if count is of_text else None
    return tokens.of_part(answer, count) if stored is None else stored


def fit(blocks: Sequence[Block], limits: Limits) -> Fitted:
    """Keep the newest blocks that fit, whole."""
    first, newest = _first_within(blocks, limits), _newest_user(blocks)
    if newest is None:
        start = _stepped(blocks, first, list(range(first, len(blocks))), limits)
        return _checked(list(blocks[start:]), list(blocks[:start]), limits, full=first > 0)
    if first <= newest:
        users = [at for at in range(first, newest + 1) if blocks[at].said.role == "user"]
        start = _stepped(blocks, first, users, limits)
        return _checked(list(blocks[start:]), list(blocks[:start]), limits, full=first > 0)
    return _within_a_turn(blocks, newest, limits)


def _within_a_turn(blocks: Sequence[Block], newest: int, limits: Limits) -> Fitted:
    """Keep the user's message and the newest exchanges behind it."""
    notes: list[str] = []
    asked = blocks[newest]
    steps = _without_bulk(blocks[newest + 1 :], limits.less([asked]), notes)
    first = _first_within(steps, limits.less([asked]))
    start = _stepped(steps, first, list(range(first, len(steps))), limits)
    start = min(start, max(0, len(steps) - 1))
    out = [*blocks[:newest], *steps[:start]]
    fitted = _checked([asked, *steps[start:]], out, limits, full=True)
    if start:
        notes.append("older exchanges of the newest turn are left out")
    fitted.notes[:0] = notes
    return fitted


def _without_bulk(blocks: Sequence[Block], limits: Limits, notes: list[str]) -> list[Block]:
    """Shorten results that alone take over half of a window: better short than out.

    The newest may take all that the others leave.
    """
    if limits.tokens is None or not blocks:
        return list(blocks)
    half = limits.tokens // 2
    older = [_shortened(block, half, limits, notes) for block in blocks[:-1]]
    most = max(half, limits.tokens - limits.cost_of(older))
    return [*older, _shortened(blocks[-1], most, limits, notes)]


def _shortened(block: Block, most: int, limits: Limits, notes: list[str]) -> Block:
    kept = [block]
    _shorten_longest(kept, msgspec.structs.replace(limits, tokens=most), notes)
    return kept[0]


def _first_within(blocks: Sequence[Block], limits: Limits) -> int:
    """Say from which block on, counted from the end, all is within the limits."""
    first = 0
    for amounts, most in (
        ([cost(block, limits.count) for block in blocks], limits.tokens),
        ([size(block) for block in blocks], limits.messages),
    ):
        if most is not None:
            within = sum(1 for so_far in accumulate(reversed(amounts)) if so_far <= most)
            first = max(first, len(blocks) - within)
    return first


def _newest_user(blocks: Sequence[Block]) -> int | None:
    users = (at for at in range(len(blocks) - 1, -1, -1) if blocks[at].said.role == "user")
    return next(users, None)


def _stepped(blocks: Sequence[Block], first: int, allowed: Sequence[int], limits: Limits) -> int:
    """Choose where to begin, at most a quarter of the window behind the first block that fits.

    It is behind the number there that can be halved most often. While that one fits it stays the
    best, and what comes in behind it only ever moves the beginning on, never back.
    """
    if first == 0 or not allowed:
        return first
    near, spent, seen = [allowed[0]], Limits(0, 0, limits.count), first
    for at in allowed:
        spent, seen = _added(spent, blocks[seen:at]), at
        if _is_a_quarter(spent, limits):
            break
        near.append(at)
    mark = _roundest(_seq(blocks[first]), _seq(blocks[near[-1]]))
    return next(at for at in near if _seq(blocks[at]) >= mark)


def _roundest(low: int, high: int) -> int:
    """Return the number between two that can be halved most often."""
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def _seq(block: Block) -> int:
    return block.said.seq or 1


def _added(so_far: Limits, blocks: Sequence[Block]) -> Limits:
    used, many = so_far.cost_of(blocks), sum(map(size, blocks))
    return Limits((so_far.tokens or 0) + used, (so_far.messages or 0) + many, so_far.count)


def _is_a_quarter(spent: Limits, limits: Limits) -> bool:
    return any(
        most is not None and 4 * (used or 0) > most
        for used, most in ((spent.tokens, limits.tokens), (spent.messages, limits.messages))
    )


# ---------------------------------------------------------------------------------- shortening


def _checked(kept: list[Block], out: list[Block], limits: Limits, *, full: bool) -> Fitted:
    """Shorten what is too long to fit, and tell what is over the limits nevertheless."""
    notes: list[str] = []
    if limits.tokens is not None:
        _shorten_longest(kept, limits, notes)
        if limits.cost_of(kept) > limits.tokens:
            notes.append("the newest messages are over the budget of tokens")
    if limits.messages is not None and sum(map(size, kept)) > limits.messages:
        notes.append("the newest exchange has more messages than were asked for")
    return Fitted(kept, out, notes, full)


def _shorten_longest(blocks: list[Block], limits: Limits, notes: list[str]) -> None:
    """Shorten tool results, the longest first, until all fits."""
    results = [
        (_of_answer(result, limits.count), at, call)
        for at, block in enumerate(blocks)
        for call, result in block.results.items()
        if result is not None
    ]
    over = limits.cost_of(blocks) - (limits.tokens or 0)
    for amount, at, call in sorted(results, reverse=True):
        if over <= 0 or amount <= _WORTH_SHORTENING:
            return
        block = blocks[at]
        result = block.results[call]
        assert result is not None  # noqa: S101 - picked so
        shorter = shorten(result, max(_WORTH_SHORTENING // 2, amount - over), limits.count)
        over -= amount - _of_answer(shorter, limits.count)
        if shorter is not result:
            results_now = {**block.results, call: shorter}
            blocks[at] = Block(block.said, results_now, block.messages)
            notes.append(f"the result of call {call!r} was shortened to fit")


def shorten(result: Answer, most: int, count: Count = of_text) -> Answer:
    """Cut the middle out of the words of a long result until it costs `most`, and say so there."""
    most -= tokens.MESSAGE  # What a result costs beside its content.
    if isinstance(result.content, str):
        return result.saying(_cut(result.content, most, count))
    pieces: list[Text | File | Raw] = list(result.content)
    lengths = [len(p.text) if isinstance(p, Text) else 0 for p in pieces]
    longest = max(range(len(pieces)), key=lengths.__getitem__, default=None)
    if longest is None:
        return result
    others = sum(tokens.of_part(p, count) for at, p in enumerate(pieces) if at != longest)
    piece = pieces[longest]
    if not isinstance(piece, Text):
        return result
    pieces[longest] = Text(_cut(piece.text, max(_WORTH_SHORTENING // 2, most - others), count))
    return result.saying(tuple(pieces))


def _cut(text: str, most: int, count: Count) -> str:
    """Cut the middle out of a text until it has so many tokens."""
    length = len(text)
    for _ in range(_TRIES):
        amount = count(_without_middle(text, length))
        if amount <= most:
            break
        length = int(length * most / amount * 0.95)
    return _without_middle(text, length)


def _without_middle(text: str, length: int) -> str:
    if length >= len(text):
        return text
    head, tail = length * 2 // 3, length // 3
    left = len(text) - head - tail
    return f"{text[:head]}\n[… {left:,} characters left out …]\n{text[len(text) - tail :]}"
