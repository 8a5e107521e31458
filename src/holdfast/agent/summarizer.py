"""Summaries: text by the model that replaces old messages in windows.

A summary is due when the window fills most of its budget. It is made in the background and covers
all but the newest messages; messages that arrive meanwhile come after it and stay in the window. If
the model fails, an extract of the messages replaces the summary. The history itself is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from holdfast import tokens
from holdfast.agent.completion import complete_once
from holdfast.agent.events import Summarized
from holdfast.agent.models.protocol import Model
from holdfast.agent.settings import Context
from holdfast.agent.text_tool_parser import end_of_thinking
from holdfast.agent.token_budgets import TokenBudget
from holdfast.agent.tools.quote import quoted
from holdfast.aio.session import AsyncSession
from holdfast.errors import ModelFailed, NotFound
from holdfast.values import Message, Window

SummarySource: TypeAlias = Literal["model", "extract"]
_BY_MODEL: Final[SummarySource] = "model"
_TIMEOUT_S: Final = 300.0
_PAGE_SIZE: Final = 200
_MIN_MESSAGES: Final = 4  # fewer messages are not worth a call
_MAX_MESSAGE_CHARS: Final = 4000  # of one message
_MAX_RESULT_CHARS: Final = 800  # of one tool result
_MAX_EXTRACT_CHARS: Final = 6000
_MAX_CALLS: Final = 4  # for one summary
_INSTRUCTIONS: Final = """\
Below is a conversation between a user and an assistant who uses tools. Summarise it so that the \
assistant can go on without it. Keep what the user wants and has decided, facts, names, paths, \
numbers, what was done and how it went, and what is open. Leave out pleasantries. Write in the \
language of the conversation, at most 600 words. Answer with the summary alone.

{said}"""


def count_dropped(window: Window) -> int:
    """Count the messages that did not fit into a window."""
    return sum(out.count for out in window.left_out if out.why == "over the budget")


def is_due(window: Window, budget: TokenBudget, context: Context) -> bool:
    """True if the window fills so much of its budget that a summary should be made."""
    if context.strategy != "summarize":
        return False
    if count_dropped(window):
        return True
    return window.tokens >= context.threshold * (budget.tokens - budget.reply_tokens)


async def summarize(
    session: AsyncSession,
    model: Model,
    budget: TokenBudget,
    keep_recent: int,
    *,
    unseen: int = 0,
) -> Summarized | None:
    """Summarise all but the newest messages; `None` if there are too few.

    `unseen` is the number of messages after the last summary that do not fit into a window: they
    are summarised too, however new they are. A long history is summarised in chunks from its oldest
    end; `upto` of the summary is how far it came, and the next summary continues from there.
    """
    covered = await session.covered()
    last = await _last_seq(session, covered, keep_recent, unseen)
    if last - covered < _MIN_MESSAGES:
        return None
    earlier = await session.summary()
    text, by, upto = "" if earlier is None else earlier.text, _BY_MODEL, ""
    for _ in range(_MAX_CALLS):
        chunk = await _next_chunk(session, covered, last, budget)
        if not chunk:
            break
        text, by = await _summary_text(model, budget, text, chunk, by)
        covered, upto = chunk[-1].seq or last, chunk[-1].id
    if not upto:
        return None
    try:
        await session.summarize(text, upto=upto)
    except NotFound:  # The user has rewound to before this message.
        return None
    return Summarized(upto=covered, by=by)


async def _last_seq(session: AsyncSession, covered: int, keep_recent: int, unseen: int) -> int:
    """Return the seq of the last message to summarise: the one before an exchange starts."""
    recent = await session.messages(limit=keep_recent)
    first = recent[0].seq or 1 if recent else 1
    if covered + unseen >= first:
        first = covered + unseen + 1
        recent = await session.messages(after=covered + unseen, limit=keep_recent)
    cut = next((m for m in recent if m.role == "user"), None) or next(
        (m for m in recent if m.role == "assistant"), None
    )
    return first - 1 if cut is None or cut.seq is None else cut.seq - 1


async def _next_chunk(
    session: AsyncSession, covered: int, last: int, budget: TokenBudget
) -> list[Message]:
    """Return the messages after `covered`, in whole exchanges, that fit into one request."""
    found: list[Message] = []
    left = (budget.tokens - budget.reply_tokens) // 2
    while covered < last and left > 0:
        page = await session.messages(after=covered, limit=min(_PAGE_SIZE, last - covered))
        if not page:
            break
        for message in page:
            left -= sum(tokens.of_text(line) for line in _transcript_lines([message]))
            if left < 0 and found and message.role != "tool":
                return found
            found.append(message)
        covered = page[-1].seq or last
    return found


async def _summary_text(
    model: Model, budget: TokenBudget, known: str, chunk: Sequence[Message], by: SummarySource
) -> tuple[str, SummarySource]:
    """Return a summary of the earlier summary and a chunk; an extract if the model fails."""
    before = [f"[Summary of what came before: {_cut(known, _MAX_MESSAGE_CHARS)}]"] if known else []
    transcript = quoted("A conversation.", "\n\n".join([*before, *_transcript_lines(chunk)]))
    try:
        question = _INSTRUCTIONS.format(said=transcript)
        answer = await complete_once(
            model, question, max_output=budget.reply_tokens, seconds=_TIMEOUT_S
        )
        return answer[end_of_thinking(answer) :].strip() or answer, by
    except ModelFailed:
        return extract(known, chunk), "extract"


def _transcript_lines(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        if message.role == "summary" or message.metadata.get("hidden"):
            continue
        for call in message.tool_calls:
            arguments = _cut(str(call.arguments), _MAX_RESULT_CHARS)
            yield f"[The assistant called {call.name} with {arguments}]"
        if message.role == "tool":
            yield f"[The tool answered: {_cut(message.text, _MAX_RESULT_CHARS)}]"
        elif message.text.strip():
            yield f"{message.role.capitalize()}: {_cut(message.text, _MAX_MESSAGE_CHARS)}"


def extract(known: str, covered: Sequence[Message]) -> str:
    """Return a summary made without a model: user input, tools used, and the last reply."""
    inputs = [m.text.strip() for m in covered if m.role == "user" and not m.metadata.get("hidden")]
    used = Counter(call.name for m in covered for call in m.tool_calls)
    last = next((m.text for m in reversed(covered) if m.role == "assistant" and m.text), "")
    lines = [_cut(known, _MAX_EXTRACT_CHARS // 3)] if known else []
    lines.append("The user said, in order:")
    remaining = _MAX_EXTRACT_CHARS
    share = max(80, min(_MAX_MESSAGE_CHARS, remaining // max(1, len(inputs))))
    newest: list[str] = []
    for text in reversed(inputs):
        remaining -= min(len(text), share)
        if remaining < 0:
            newest.append(f"- [{len(inputs) - len(newest)} earlier messages]")
            break
        newest.append(f"- {_cut(text, share)}")
    lines.extend(reversed(newest))
    if used:
        lines.append(
            "Tools that were used: " + ", ".join(f"{n} ({c} x)" for n, c in used.most_common())
        )
    if last:
        lines.append(f"The assistant's last word: {_cut(last, _MAX_RESULT_CHARS)}")
    return "\n".join(lines)


def _cut(text: str, length: int) -> str:
    """Return the beginning and the end of a long text."""
    text = text.strip()
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} […] {text[-half:]}"
