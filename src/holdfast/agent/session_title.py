"""Session titles, made by the model in the background; a title set by the user has precedence."""

from __future__ import annotations

from typing import Final

from holdfast import titles
from holdfast.agent.completion import complete_once
from holdfast.agent.models.protocol import Model
from holdfast.agent.text_tool_parser import end_of_thinking
from holdfast.agent.tools.quote import quoted
from holdfast.aio.session import AsyncSession
from holdfast.errors import ModelFailed
from holdfast.values import Message

_TIMEOUT_S: Final = 60.0
_MAX_EXCERPT_CHARS: Final = 600
_MAX_TITLE_CHARS: Final = 80
_INSTRUCTIONS: Final = (
    "Give this conversation a title of at most six words, in the language it is held in. Answer "
    "with the title alone.\n\n{said}"
)


async def make_title(session: AsyncSession, model: Model) -> str | None:
    """Have the model write a title, and store it; `None` if there is one, or the model fails."""
    if not titles.needs_title(await session.info()):
        return None
    user_text, reply_text = _first_exchange(await session.messages(after=0, limit=20))
    if not user_text or not reply_text:
        return None
    excerpt = (
        f"User: {user_text[:_MAX_EXCERPT_CHARS]}\n\nAssistant: {reply_text[:_MAX_EXCERPT_CHARS]}"
    )
    question = _INSTRUCTIONS.format(said=quoted("Its beginning.", excerpt))
    try:
        title = _clean_title(
            await complete_once(model, question, max_output=64, seconds=_TIMEOUT_S)
        )
    except ModelFailed:
        return None
    if title is None:
        return None
    info = await session.update(auto_title=title)
    return info.title


def _first_exchange(messages: list[Message]) -> tuple[str, str]:
    shown = [m for m in messages if not any(m.metadata.get(f) for f in ("hidden", "injected"))]
    user_text = next((m.text for m in shown if m.role == "user" and m.text.strip()), "")
    reply_text = next((m.text for m in shown if m.role == "assistant" and m.text.strip()), "")
    return user_text, reply_text


def _clean_title(answer: str) -> str | None:
    """Return the title in an answer; `None` if it does not look like one."""
    lines = answer[end_of_thinking(answer) :].strip().splitlines()
    line = titles.shorten(lines[0]).removeprefix("Title:") if lines else ""
    title = line.strip(" \"'`*#.\u201c\u201d")
    return title if title and len(title) <= _MAX_TITLE_CHARS and not title.startswith("<") else None
