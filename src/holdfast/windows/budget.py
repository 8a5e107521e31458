"""The token and message budget of a window: keep as many of the newest blocks as fit.

A window begins with a user message, and blocks are never split. When the history outgrows the
budget, the beginning does not move with every message: it advances in steps of up to a quarter of
the window, so that the provider's prompt cache stays valid for many turns.

The newest user message is always included. If the messages after it exceed the budget, the oldest
exchanges among them are omitted, whole; if the newest exchange alone exceeds it, its longest
results are shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from holdfast import tokens
from holdfast.tokens import Count, of_text
from holdfast.values import File, Raw, Text
from holdfast.windows.pairing import Answer, Block, size

_WORTH_SHORTENING: Final = 100
_TRIES: Final = 6


class Limits(msgspec.Struct, frozen=True):
    """The most tokens and messages a window may have, and the function that counts tokens."""

    tokens: int | None
    messages: int | None
    count: Count = of_text

    def less(self, blocks: Sequence[Block]) -> Limits:
        """Return the limits that remain after these blocks."""
        used, messages = self.cost_of(blocks), sum(map(size, blocks))
        return Limits(
            None if self.tokens is None else max(0, self.tokens - used),
            None if self.messages is None else max(0, self.messages - messages),
            self.count,
        )

    def cost_of(self, blocks: Iterable[Block]) -> int:
        """Return how many tokens these blocks have."""
        return sum(cost(block, self.count) for block in blocks)


class Fitted(msgspec.Struct, frozen=True):
    """Included and excluded blocks, and notes for the caller. `is_full`: more did not fit."""

    blocks: list[Block]
    out: list[Block]
    notes: list[str]
    full: bool


def cost(block: Block, count: Count) -> int:
    """Return how many tokens a block has; every call must have its result already."""
    if block.tokens is None:
        stored = block.said.tokens if count is of_text else None
        message_tokens = tokens.of_message(block.said, count) if stored is None else stored
        answers = (answer for answer in block.results.values() if answer is not None)
        block.tokens = message_tokens + sum(_of_answer(answer, count) for answer in answers)
    return block.tokens


def _of_answer(answer: Answer, count: Count) -> int:
    stored = answer.tokens if count is of_text else None
    return tokens.of_part(answer, count) if stored is None else stored


def fit(blocks: Sequence[Block], limits: Limits) -> Fitted:
    """Keep the newest blocks that fit; no block is split."""
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
    """Keep the newest user message and the newest exchanges after it."""
    notes: list[str] = []
    user = blocks[newest]
    steps = _without_bulk(blocks[newest + 1 :], limits.less([user]), notes)
    first = _first_within(steps, limits.less([user]))
    start = _stepped(steps, first, list(range(first, len(steps))), limits)
    start = min(start, max(0, len(steps) - 1))
    out = [*blocks[:newest], *steps[:start]]
    fitted = _checked([user, *steps[start:]], out, limits, full=True)
    if start:
        notes.append("older exchanges of the newest turn are left out")
    fitted.notes[:0] = notes
    return fitted


def _without_bulk(blocks: Sequence[Block], limits: Limits, notes: list[str]) -> list[Block]:
    """Shorten results that alone take over half of the window, rather than omit them.

    The newest block may use all tokens that the others do not.
    """
    if limits.tokens is None or not blocks:
        return list(blocks)
    half = limits.tokens // 2
    older = [_shortened(block, half, limits, notes) for block in blocks[:-1]]
    newest_limit = max(half, limits.tokens - limits.cost_of(older))
    return [*older, _shortened(blocks[-1], newest_limit, limits, notes)]


def _shortened(block: Block, max_tokens: int, limits: Limits, notes: list[str]) -> Block:
    kept = [block]
    _shorten_longest(kept, msgspec.structs.replace(limits, tokens=max_tokens), notes)
    return kept[0]


def _first_within(blocks: Sequence[Block], limits: Limits) -> int:
    """Return the index of the first block such that it and all later ones are within limits."""
    first = 0
    for amounts, limit in (
        ([cost(block, limits.count) for block in blocks], limits.tokens),
        ([size(block) for block in blocks], limits.messages),
    ):
        if limit is not None:
            within = sum(1 for total in accumulate(reversed(amounts)) if total <= limit)
            first = max(first, len(blocks) - within)
    return first


def _newest_user(blocks: Sequence[Block]) -> int | None:
    users = (at for at in range(len(blocks) - 1, -1, -1) if blocks[at].said.role == "user")
    return next(users, None)


def _stepped(blocks: Sequence[Block], first: int, allowed: Sequence[int], limits: Limits) -> int:
    """Return a stable index to begin at, at most a quarter of the window after `first`.

    Among the sequence numbers in that range, the one divisible by the highest power of two is
    chosen. It stays the choice for as long as it is in range, so new messages move the beginning
    rarely, and never back.
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
    """Return the number from `low` to `high` that is divisible by the highest power of two."""
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def _seq(block: Block) -> int:
    return block.said.seq or 1


def _added(spent: Limits, blocks: Sequence[Block]) -> Limits:
    used, messages = spent.cost_of(blocks), sum(map(size, blocks))
    return Limits((spent.tokens or 0) + used, (spent.messages or 0) + messages, spent.count)


def _is_a_quarter(spent: Limits, limits: Limits) -> bool:
    return any(
        limit is not None and 4 * (used or 0) > limit
        for used, limit in ((spent.tokens, limits.tokens), (spent.messages, limits.messages))
    )


# ---------------------------------------------------------------------------------- shortening


def _checked(kept: list[Block], out: list[Block], limits: Limits, *, full: bool) -> Fitted:
    """Shorten results until all fits, and note the limits that are exceeded nevertheless."""
    notes: list[str] = []
    if limits.tokens is not None:
        _shorten_longest(kept, limits, notes)
        if limits.cost_of(kept) > limits.tokens:
            notes.append("the newest messages are over the budget of tokens")
    if limits.messages is not None and sum(map(size, kept)) > limits.messages:
        notes.append("the newest exchange has more messages than were asked for")
    return Fitted(kept, out, notes, full)


def _shorten_longest(blocks: list[Block], limits: Limits, notes: list[str]) -> None:
    """Shorten tool results, the longest first, until the blocks fit."""
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
        assert result is not None  # noqa: S101 - `results` holds no others
        shorter = shorten(result, max(_WORTH_SHORTENING // 2, amount - over), limits.count)
        over -= amount - _of_answer(shorter, limits.count)
        if shorter is not result:
            results_now = {**block.results, call: shorter}
            blocks[at] = Block(block.said, results_now, block.messages)
            notes.append(f"the result of call {call!r} was shortened to fit")


def shorten(result: Answer, max_tokens: int, count: Count = of_text) -> Answer:
    """Cut the middle out of a result's text until it costs at most `max_tokens`; a mark says so."""
    max_tokens -= tokens.MESSAGE  # The cost of a result beyond its content.
    if isinstance(result.content, str):
        return result.saying(_cut(result.content, max_tokens, count))
    pieces: list[Text | File | Raw] = list(result.content)
    lengths = [len(p.text) if isinstance(p, Text) else 0 for p in pieces]
    longest = max(range(len(pieces)), key=lengths.__getitem__, default=None)
    if longest is None:
        return result
    others = sum(tokens.of_part(p, count) for at, p in enumerate(pieces) if at != longest)
    piece = pieces[longest]
    if not isinstance(piece, Text):
        return result
    pieces[longest] = Text(
        _cut(piece.text, max(_WORTH_SHORTENING // 2, max_tokens - others), count)
    )
    return result.saying(tuple(pieces))


def _cut(text: str, max_tokens: int, count: Count) -> str:
    """Cut the middle out of a text until it has at most `max_tokens` tokens."""
    length = len(text)
    for _ in range(_TRIES):
        amount = count(_without_middle(text, length))
        if amount <= max_tokens:
            break
        length = int(length * max_tokens / amount * 0.95)
    return _without_middle(text, length)


def _without_middle(text: str, length: int) -> str:
    if length >= len(text):
        return text
    head, tail = length * 2 // 3, length // 3
    omitted = len(text) - head - tail
    return f"{text[:head]}\n[… {omitted:,} characters left out …]\n{text[len(text) - tail :]}"
