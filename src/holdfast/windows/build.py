"""Builds a window: read as much of the history's tail as the budget can hold, then apply the steps.

The history is read from its end, a page at a time, and no further than needed: a window over a
million messages costs as much as one over a thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast import tokens, validation
from holdfast.errors import SessionNotFound
from holdfast.formats.registry import format_of
from holdfast.ids import split_turn_id
from holdfast.operations.history import DamageCallback, last_covered_seq, newest_summary, read_span
from holdfast.operations.leases import final_outcome
from holdfast.operations.queries import measured_tokens
from holdfast.operations.token_calibration import correction_factor
from holdfast.operations.turns import is_abandoned
from holdfast.storage.prefetch import Prefetch, Prefetched, PrefetchItem
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import HeadRow
from holdfast.values import (
    JSON,
    WHOLE_OUTPUT,
    File,
    LeftOut,
    Message,
    Part,
    Provider,
    Thinking,
    ToolOutcome,
    Window,
)
from holdfast.windows.budget import FitResult, WindowLimits, fit
from holdfast.windows.pairing import (
    MessageBlock,
    Outcomes,
    PairedResult,
    add_missing_results,
    group_messages,
    sent_count,
)
from holdfast.windows.rendering import render
from holdfast.windows.roles import OrderedMessages, apply_rules, sources_of, split_by_caller
from holdfast.windows.selection import select_messages
from holdfast.windows.tokenizers import tokenizer_for

_FIRST_PAGE: Final = 64
_OVER_BUDGET: Final = "over the budget"
_BEFORE_USER: Final = "before the first user message"
_EMPTY: Final = "empty"


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a window."""

    provider: Provider
    max_tokens: int | None
    reserve: int
    max_messages: int | None
    keep_first_user: bool
    system: str | None
    timestamps: bool


def check_options(options: WindowOptions) -> WindowOptions:
    """Return valid options, with a blank `system` as None; `BadQuery` if one is invalid."""
    format_of(options.provider)  # Raises here if it is unknown, and is imported before the read.
    for field, value in (
        ("max_tokens", options.max_tokens),
        ("max_messages", options.max_messages),
    ):
        if value is not None:
            validation.check_number(value, field, lowest=1)
    validation.check_number(options.reserve, "reserve")
    if options.system is not None:
        validation.check_text(options.system, "system")
        if not options.system.strip():
            return msgspec.structs.replace(options, system=None)
    return options


def window(session: int, options: WindowOptions, report: DamageCallback) -> Query[Window]:
    """Return the query that builds a window of a session's history."""

    def run(snapshot: Snapshot) -> Window:
        head = snapshot.head(session)
        if head is None:
            raise SessionNotFound("this session is no longer in the store.")
        return _WindowBuilder(snapshot, head, options, report).build()

    items: tuple[PrefetchItem, ...] = ("session", "usage", "summary")
    return Prefetched(run, Prefetch(session, newest=_FIRST_PAGE, items=items))


def window_of(provider: Provider, text: str) -> Window:
    """Return a window of a single user message that belongs to no history."""
    message = Message.user(text)
    items = [with_valid_unicode(item) for item in format_of(provider).encode(message)]
    return Window(
        provider=provider,
        messages=items,
        sources=((),) * len(items),
        system=None,
        tokens=tokens.of_message(message),
        left_out=(),
        notes=(),
        call_ids={},
    )


class _TailFit(msgspec.Struct, frozen=True):
    """How much of the tail read so far fits, and what is excluded."""

    fitted: FitResult
    summary_message: Message | None
    left_out: Counter[str]
    unread: int
    has_user_message: bool
    limits: WindowLimits
    summary_seq: int


class _WindowBuilder:
    """Builds one window from one snapshot."""

    def __init__(
        self, snapshot: Snapshot, head: HeadRow, options: WindowOptions, report: DamageCallback
    ) -> None:
        self._snapshot = snapshot
        self._head = head
        self._options = options
        self._report = report
        self._format = format_of(options.provider)
        model = self._model()
        exactly = tokenizer_for(model)
        self._count = exactly or tokens.of_text
        self._factor = (
            1.0 if exactly or model is None else correction_factor(measured_tokens(snapshot, model))
        )

    def build(self) -> Window:
        """Read the history, select what fits, and encode it for the provider."""
        summary = self._summary()
        covered = 0 if summary is None else self._covered(summary)
        first = self._first_user()
        view = self._fit_tail(summary, covered, first)
        lead, kept, out = self._with_first_user(view, first)
        shaped = apply_rules(
            [self._with_file_data(block) for block in kept],
            view.summary_message,
            self._format,
            [self._with_file_data(block) for block in lead],
        )
        cost = self._cost(view.summary_message, view.limits, [*lead, *kept])
        encoded = list(self._encode_all(shaped))
        sources = tuple(made_of for _, made_of in encoded)
        unsent = self._unsent([*lead, *kept], out, shaped, sources)
        return Window(
            provider=self._options.provider,
            messages=[item for item, _ in encoded],
            sources=sources,
            system=_to_unicode(self._system(shaped.system)),
            tokens=cost,
            left_out=self._left_out(view, covered, lead, unsent),
            notes=tuple(self._notes(view, cost, lead)),
            call_ids=shaped.call_ids,
        )

    def _fit_tail(self, summary: Message | None, covered: int, first: Message | None) -> _TailFit:
        """Read back from the end, a page at a time, until more would not fit."""
        tail: list[Message] = []
        estimated = 0
        low, page = self._head.seq + 1, _FIRST_PAGE
        if self._options.max_tokens is None and self._options.max_messages is None:
            page = self._head.seq
        while True:
            if low <= covered + 1 or not self._has_room(len(tail), estimated):
                view = self._fit_messages(tail, summary, covered, first)
                if low <= covered + 1 or (view.fitted.is_full and view.has_user_message):
                    return view
            high, low = low - 1, max(covered + 1, low - page)
            read = self._read(low, high)
            tail = read + tail
            estimated += sum(map(tokens.of_message, read))
            page *= 2  # Doubling keeps the cost of the repeated decisions linear.

    def _has_room(self, messages: int, estimated: int) -> bool:
        """True if there is certainly room for more than so many messages and estimated tokens."""
        budget, max_messages = self._budget(), self._options.max_messages
        if budget is not None and self._count is not tokens.of_text:
            budget //= 2
        return (budget is None or estimated < budget) and (
            max_messages is None or messages < max_messages
        )

    def _fit_messages(
        self, tail: list[Message], summary: Message | None, covered: int, first: Message | None
    ) -> _TailFit:
        """Return how much of the tail fits."""
        unread = (tail[0].seq or 1) - 1 if tail else self._head.seq
        begin = 0
        if unread > covered:
            # Leading results belong to calls that were not read.
            begin = next((at for at, m in enumerate(tail) if m.role != "tool"), len(tail))
        chosen = select_messages(tail[begin:], summary, covered)
        rendered = [render(m, timestamps=self._options.timestamps) for m in chosen.messages]
        blocks = group_messages(rendered, chosen.left_out, self._is_sent)
        outcomes = self._outcomes(blocks)
        for block in blocks:
            add_missing_results(block, outcomes)
        chosen.left_out[_OVER_BUDGET] += begin
        limits = WindowLimits(self._budget(), self._options.max_messages, self._count)
        if chosen.summary_message is not None:
            limits = limits.minus([MessageBlock(chosen.summary_message)])
        has_user = any(block.message.role == "user" for block in blocks)
        fitted = fit(blocks, limits)
        if first is not None and all(block.message.seq != first.seq for block in fitted.blocks):
            fitted = fit(blocks, limits.minus([MessageBlock(first)]))
        noted = 0 if summary is None else summary.seq or 0
        return _TailFit(
            fitted, chosen.summary_message, chosen.left_out, unread, has_user, limits, noted
        )

    def _with_first_user(
        self, view: _TailFit, first: Message | None
    ) -> tuple[list[MessageBlock], list[MessageBlock], list[MessageBlock]]:
        """Return lead, kept and excluded blocks: the lead is the first user message, if wanted.

        It is empty if that message is among the kept ones anyway.
        """
        kept, out = view.fitted.blocks, view.fitted.excluded
        if first is None or any(block.message.seq == first.seq for block in kept):
            return [], kept, out
        return [MessageBlock(first)], kept, [b for b in out if b.message.seq != first.seq]

    def _left_out(
        self,
        view: _TailFit,
        covered: int,
        lead: Sequence[MessageBlock],
        unsent: Counter[str],
    ) -> tuple[LeftOut, ...]:
        """Count the messages of the history that are not in the window, by reason."""
        counts = view.left_out + unsent
        hidden = min(view.unread, covered)
        counts["covered by a summary"] += hidden
        counts[_OVER_BUDGET] += view.unread - hidden
        if covered < view.summary_seq <= view.unread:
            counts[_OVER_BUDGET] -= 1  # The summary itself is sent.
        for block in lead:
            seq = block.message.seq or 0
            if seq <= view.unread:
                counts["covered by a summary" if seq <= covered else _OVER_BUDGET] -= 1
        return tuple(LeftOut(count, why) for why, count in sorted(counts.items()) if count > 0)

    @staticmethod
    def _unsent(
        blocks: Sequence[MessageBlock],
        out: Sequence[MessageBlock],
        shaped: OrderedMessages,
        sources: Sequence[tuple[str, ...]],
    ) -> Counter[str]:
        """Count the messages of blocks that no item has, nor the system prompt, by reason."""
        sent = {source for made_of in sources for source in made_of}
        sent |= {message.id for message in shaped.system if message.text}
        kept = sources_of(blocks)
        return Counter(
            {
                _OVER_BUDGET: len(sources_of(out) - kept),
                _BEFORE_USER: len(shaped.before_user - sent),
                _EMPTY: len(kept - shaped.before_user - sent),
            }
        )

    def _notes(self, view: _TailFit, cost: int, lead: Sequence[MessageBlock]) -> Iterator[str]:
        yield from view.fitted.notes
        if view.fitted.notes:
            return
        max_tokens, max_messages = self._options.max_tokens, self._options.max_messages
        if max_tokens is not None and cost > max_tokens - self._options.reserve:
            yield "what is always sent is over the budget of tokens"
        sent = sum(map(sent_count, [*lead, *view.fitted.blocks])) + (
            view.summary_message is not None
        )
        if max_messages is not None and sent > max_messages:
            yield "what is always sent has more messages than `max_messages`"

    def _budget(self) -> int | None:
        """Return how many tokens the messages may have, in uncalibrated counts."""
        if self._options.max_tokens is None:
            return None
        room = (self._options.max_tokens - self._options.reserve) / self._factor
        return max(0, int(room) - self._count(self._options.system or ""))

    def _cost(
        self, note: Message | None, limits: WindowLimits, blocks: Sequence[MessageBlock]
    ) -> int:
        noted = [] if note is None else [MessageBlock(note)]
        counted = self._count(self._options.system or "") + limits.cost_of([*noted, *blocks])
        return round(counted * self._factor)

    # --------------------------------------------------------------------------------- reading

    def _model(self) -> str | None:
        """Return the model the window is for: the session's, or the last one with usage."""
        owner = self._snapshot.session(self._head.session)
        if owner is not None and owner.model is not None:
            return owner.model
        used = self._snapshot.usage(session=self._head.session)
        return used[-1].model if used else None

    def _summary(self) -> Message | None:
        """Read the newest summary that was not erased."""
        return newest_summary(self._snapshot, self._head, self._report)

    def _read(self, low: int, high: int) -> list[Message]:
        path = self._snapshot.path(self._head.branch, low)
        return read_span(self._snapshot, path, (low, high), report=self._report)

    def _covered(self, summary: Message) -> int:
        """Return the seq up to which a summary covers the history."""
        return last_covered_seq(self._snapshot, self._head, summary)

    def _first_user(self) -> Message | None:
        """Return the first user message that can be sent, if the options ask to keep it."""
        if not self._options.keep_first_user or not self._head.seq:
            return None
        preview, page = self._head.preview_seq, min(self._head.seq, _FIRST_PAGE)
        for low, high in ((1, min(preview, page)), (1, page), (max(preview, 1), preview)):
            read = self._read(low, high)
            messages = [m for m in read if not m.demoted and not m.metadata.get("injected")]
            blocks = group_messages(
                select_messages(messages, None, 0).messages, Counter(), self._is_sent
            )
            for block in blocks:
                if block.message.role == "user":
                    return render(block.message, timestamps=self._options.timestamps)
        return None

    def _outcomes(self, blocks: Sequence[MessageBlock]) -> Outcomes:
        """Return the ledger's outcomes for calls without a result."""
        turns = {
            b.message.turn_id for b in blocks if b.message.turn_id and None in b.results.values()
        }
        return {(turn, call): outcome for turn in turns for call, outcome in self._ledger(turn)}

    def _ledger(self, turn: str) -> list[tuple[str, ToolOutcome]]:
        """Return the outcomes of a turn's calls; of a crashed turn, as recovery records them."""
        session_id, number = split_turn_id(turn)
        owner = self._snapshot.find_session(id=session_id, stubs=True)
        row = None if owner is None else self._snapshot.turn(owner.n, number)
        if owner is None or row is None:
            return []
        over = row.state != "open" or is_abandoned(self._snapshot, row)
        tools = self._snapshot.tools(owner.n, number)
        return [(t.call_id, final_outcome(t.outcome) if over else t.outcome) for t in tools]

    # --------------------------------------------------------------------------------- writing

    def _with_file_data(self, block: MessageBlock) -> MessageBlock:
        """Return the block with the data of its files."""
        message = msgspec.structs.replace(
            block.message, parts=tuple(self._part_with_data(part) for part in block.message.parts)
        )
        results = {
            call: None if result is None else self._result_with_data(result)
            for call, result in block.results.items()
        }
        return msgspec.structs.replace(block, message=message, results=results)

    def _result_with_data(self, result: PairedResult) -> PairedResult:
        if isinstance(result.content, str):
            return result
        content = tuple(
            self._load_file(piece) if isinstance(piece, File) else piece for piece in result.content
        )
        return msgspec.structs.replace(result, content=content)

    def _part_with_data(self, part: Part) -> Part:
        return self._load_file(part) if isinstance(part, File) else part

    def _load_file(self, file: File) -> File:
        if file.data is not None or file.sha256 is None or file.mime == WHOLE_OUTPUT:
            return file
        return msgspec.structs.replace(file, data=self._snapshot.blob(file.sha256) or None)

    def _encode_all(
        self, shaped: OrderedMessages
    ) -> Iterator[tuple[dict[str, JSON], tuple[str, ...]]]:
        """Encode messages; each item with the ids of the stored messages that it is made of."""
        messages = self._format.make_compatible(shaped.messages)
        if self._options.system and self._format.encode_system is None:
            messages = [Message.system(self._options.system), *messages]
        for message in messages:
            for made_of, items in self._encode(message, shaped):
                for item in items:
                    yield with_valid_unicode(item), made_of

    def _encode(
        self, message: Message, shaped: OrderedMessages
    ) -> Iterator[tuple[tuple[str, ...], list[dict[str, JSON]]]]:
        items, made_of = self._format.encode(message), shaped.sources.get(message.id, ())
        if len(items) == 1 or len(made_of) <= 1:
            yield made_of, items
            return
        # Each call is an item here, and those that were joined have other sources.
        for source, piece in split_by_caller(message, shaped.callers):
            yield (source,), self._format.encode(piece)

    def _is_sent(self, message: Message) -> bool:
        """True if this provider is sent anything but thinking of a message without text."""
        parts = tuple(part for part in message.parts if not isinstance(part, Thinking))
        items = self._format.encode(msgspec.structs.replace(message, parts=parts))
        return any(map(self._format.has_content, items))

    def _system(self, found: Sequence[Message]) -> JSON:
        texts = (self._options.system, *(message.text for message in found))
        text = "\n\n".join(text for text in texts if text)
        encode = self._format.encode_system
        return encode(text) if text and encode is not None else None


def with_valid_unicode(item: dict[str, JSON]) -> dict[str, JSON]:
    """Return an encoded message whose text is valid Unicode, whatever was stored."""
    try:
        msgspec.json.encode(item)
    except UnicodeEncodeError:
        return {str(_to_unicode(name)): _to_unicode(value) for name, value in item.items()}
    return item


def _to_unicode(value: JSON) -> JSON:
    if isinstance(value, str):
        # Surrogate pairs become one character, lone surrogates a replacement character.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_to_unicode(inner) for inner in value]
    if isinstance(value, dict):
        return {str(_to_unicode(name)): _to_unicode(inner) for name, inner in value.items()}
    return value
