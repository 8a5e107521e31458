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
from holdfast.tokens import TokenCounter, of_text
from holdfast.values import File, Raw, Text
from holdfast.windows.pairing import MessageBlock, PairedResult, sent_count

_MIN_SHORTENED_TOKENS: Final = 100
_MAX_CUT_ATTEMPTS: Final = 6


class WindowLimits(msgspec.Struct, frozen=True):
    """The most tokens and messages a window may have, and the function that counts tokens."""

    tokens: int | None
    messages: int | None
    count: TokenCounter = of_text

    def minus(self, blocks: Sequence[MessageBlock]) -> WindowLimits:
        """Return the limits that remain after these blocks."""
        used, messages = self.cost_of(blocks), sum(map(sent_count, blocks))
        return WindowLimits(
            None if self.tokens is None else max(0, self.tokens - used),
            None if self.messages is None else max(0, self.messages - messages),
            self.count,
        )

    def cost_of(self, blocks: Iterable[MessageBlock]) -> int:
        """Return how many tokens these blocks have."""
        return sum(cost(block, self.count) for block in blocks)


class FitResult(msgspec.Struct, frozen=True):
    """Included and excluded blocks, and notes for the caller. `is_full`: more did not fit."""

    blocks: list[MessageBlock]
    excluded: list[MessageBlock]
    notes: list[str]
    is_full: bool


def cost(block: MessageBlock, count: TokenCounter) -> int:
    """Return how many tokens a block has; every call must have its result already."""
    if block.tokens is None:
        answers = (answer for answer in block.results.values() if answer is not None)
        block.tokens = tokens.of_message(block.message, count) + sum(
            tokens.of_part(answer, count) for answer in answers
        )
    return block.tokens


def fit(blocks: Sequence[MessageBlock], limits: WindowLimits) -> FitResult:
    """Keep the newest blocks that fit; no block is split."""
    first, newest = _first_fitting(blocks, limits), _newest_user(blocks)
    if newest is None:
        start = _stable_start(blocks, first, list(range(first, len(blocks))), limits)
        return _shorten_to_fit(list(blocks[start:]), list(blocks[:start]), limits, full=first > 0)
    if first <= newest:
        users = [at for at in range(first, newest + 1) if blocks[at].message.role == "user"]
        start = _stable_start(blocks, first, users, limits)
        return _shorten_to_fit(list(blocks[start:]), list(blocks[:start]), limits, full=first > 0)
    return _fit_newest_turn(blocks, newest, limits)


def _fit_newest_turn(
    blocks: Sequence[MessageBlock], newest: int, limits: WindowLimits
) -> FitResult:
    """Keep the newest user message and the newest exchanges after it."""
    notes: list[str] = []
    user = blocks[newest]
    steps = _shorten_bulky_results(blocks[newest + 1 :], limits.minus([user]), notes)
    first = _first_fitting(steps, limits.minus([user]))
    start = _stable_start(steps, first, list(range(first, len(steps))), limits)
    start = min(start, max(0, len(steps) - 1))
    out = [*blocks[:newest], *steps[:start]]
    fitted = _shorten_to_fit([user, *steps[start:]], out, limits, full=True)
    if start:
        notes.append("older exchanges of the newest turn are left out")
    fitted.notes[:0] = notes
    return fitted


def _shorten_bulky_results(
    blocks: Sequence[MessageBlock], limits: WindowLimits, notes: list[str]
) -> list[MessageBlock]:
    """Shorten results that alone take over half of the window, rather than omit them.

    The newest block may use all tokens that the others do not.
    """
    if limits.tokens is None or not blocks:
        return list(blocks)
    half = limits.tokens // 2
    older = [_shortened(block, half, limits, notes) for block in blocks[:-1]]
    newest_limit = max(half, limits.tokens - limits.cost_of(older))
    return [*older, _shortened(blocks[-1], newest_limit, limits, notes)]


def _shortened(
    block: MessageBlock, max_tokens: int, limits: WindowLimits, notes: list[str]
) -> MessageBlock:
    kept = [block]
    _shorten_longest(kept, msgspec.structs.replace(limits, tokens=max_tokens), notes)
    return kept[0]


def _first_fitting(blocks: Sequence[MessageBlock], limits: WindowLimits) -> int:
    """Return the index of the first block such that it and all later ones are within limits."""
    first = 0
    for amounts, limit in (
        ([cost(block, limits.count) for block in blocks], limits.tokens),
        ([sent_count(block) for block in blocks], limits.messages),
    ):
        if limit is not None:
            within = sum(1 for total in accumulate(reversed(amounts)) if total <= limit)
            first = max(first, len(blocks) - within)
    return first


def _newest_user(blocks: Sequence[MessageBlock]) -> int | None:
    users = (at for at in range(len(blocks) - 1, -1, -1) if blocks[at].message.role == "user")
    return next(users, None)


def _stable_start(
    blocks: Sequence[MessageBlock], first: int, allowed: Sequence[int], limits: WindowLimits
) -> int:
    """Return a stable index to begin at, at most a quarter of the window after `first`.

    Among the sequence numbers in that range, the one divisible by the highest power of two is
    chosen. It stays the choice for as long as it is in range, so new messages move the beginning
    rarely, and never back.
    """
    if first == 0 or not allowed:
        return first
    near, spent, seen = [allowed[0]], WindowLimits(0, 0, limits.count), first
    for at in allowed:
        spent, seen = _plus_blocks(spent, blocks[seen:at]), at
        if _exceeds_quarter(spent, limits):
            break
        near.append(at)
    mark = _most_divisible(_seq(blocks[first]), _seq(blocks[near[-1]]))
    return next(at for at in near if _seq(blocks[at]) >= mark)


def _most_divisible(low: int, high: int) -> int:
    """Return the number from `low` to `high` that is divisible by the highest power of two."""
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def _seq(block: MessageBlock) -> int:
    return block.message.seq or 1


def _plus_blocks(spent: WindowLimits, blocks: Sequence[MessageBlock]) -> WindowLimits:
    used, messages = spent.cost_of(blocks), sum(map(sent_count, blocks))
    return WindowLimits((spent.tokens or 0) + used, (spent.messages or 0) + messages, spent.count)


def _exceeds_quarter(spent: WindowLimits, limits: WindowLimits) -> bool:
    return any(
        limit is not None and 4 * (used or 0) > limit
        for used, limit in ((spent.tokens, limits.tokens), (spent.messages, limits.messages))
    )


# ---------------------------------------------------------------------------------- shortening


def _shorten_to_fit(
    kept: list[MessageBlock], out: list[MessageBlock], limits: WindowLimits, *, full: bool
) -> FitResult:
    """Shorten results until all fits, and note the limits that are exceeded nevertheless."""
    notes: list[str] = []
    if limits.tokens is not None:
        _shorten_longest(kept, limits, notes)
        if limits.cost_of(kept) > limits.tokens:
            notes.append("the newest messages are over the budget of tokens")
    if limits.messages is not None and sum(map(sent_count, kept)) > limits.messages:
        notes.append("the newest exchange has more messages than `max_messages`")
    return FitResult(kept, out, notes, full)


def _shorten_longest(blocks: list[MessageBlock], limits: WindowLimits, notes: list[str]) -> None:
    """Shorten tool results, the longest first, until the blocks fit."""
    results = [
        (tokens.of_part(result, limits.count), at, call)
        for at, block in enumerate(blocks)
        for call, result in block.results.items()
        if result is not None
    ]
    over = limits.cost_of(blocks) - (limits.tokens or 0)
    for amount, at, call in sorted(results, reverse=True):
        if over <= 0 or amount <= _MIN_SHORTENED_TOKENS:
            return
        block = blocks[at]
        result = block.results[call]
        assert result is not None  # noqa: S101 - `results` holds no others
        shorter = shorten(result, max(_MIN_SHORTENED_TOKENS // 2, amount - over), limits.count)
        over -= amount - tokens.of_part(shorter, limits.count)
        if shorter is not result:
            results_now = {**block.results, call: shorter}
            blocks[at] = msgspec.structs.replace(block, results=results_now, tokens=None)
            notes.append(f"the result of call {call!r} was shortened to fit")


def shorten(result: PairedResult, max_tokens: int, count: TokenCounter = of_text) -> PairedResult:
    """Cut the middle out of a result's text until it costs at most `max_tokens`; a mark says so."""
    max_tokens -= tokens.MESSAGE_TOKENS  # The cost of a result beyond its content.
    if isinstance(result.content, str):
        return result.with_content(_cut(result.content, max_tokens, count))
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
        _cut(piece.text, max(_MIN_SHORTENED_TOKENS // 2, max_tokens - others), count)
    )
    return result.with_content(tuple(pieces))


def _cut(text: str, max_tokens: int, count: TokenCounter) -> str:
    """Cut the middle out of a text until it has at most `max_tokens` tokens."""
    length = len(text)
    for _ in range(_MAX_CUT_ATTEMPTS):
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
