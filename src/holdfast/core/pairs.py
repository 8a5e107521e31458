"""Where a history may be cut: never between a tool call and its result.

A call without its result, or a result without its call, makes every later request fail. So a
history is never shared up to a message whose call is answered behind it; the cut moves to before
that call. A call that nobody answered, and nobody will, is no pair, and may stand at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.records import Message


def whole_length(
    before: Sequence[Message], after: Sequence[Message], awaited: Collection[str] = ()
) -> int:
    """Return how many of `before` may stay: no call among them is answered behind them.

    Answers are looked for in `after`, which follows directly; those to the calls named in
    `awaited` are still to come.
    """
    length = len(before)
    while True:
        answered = answered_calls([*before[length:], *after], awaited)
        split = [at for call, at in _open_calls(before[:length]).items() if call in answered]
        if not split:
            return length
        length = min(split)


def answered_calls(messages: Sequence[Message], awaited: Collection[str] = ()) -> set[str]:
    """Name the calls that were made before these messages, and are answered in or behind them."""
    made: set[str] = set()
    earlier: set[str] = set()
    for message in messages:
        earlier.update(r.call_id for r in message.tool_results if r.call_id not in made)
        made.update(call.id for call in message.tool_calls)
    return earlier | (set(awaited) - made)


def open_calls(messages: Sequence[Message]) -> set[str]:
    """Name the calls that are made here and not answered."""
    return set(_open_calls(messages))


def _open_calls(messages: Sequence[Message]) -> dict[str, int]:
    """Find the calls that are not answered here, and where each was made."""
    calls: dict[str, int] = {}
    for at, message in enumerate(messages):
        for result in message.tool_results:
            calls.pop(result.call_id, None)
        for call in message.tool_calls:
            calls[call.id] = at  # Of two calls with one id the newer one is answered.
    return calls
