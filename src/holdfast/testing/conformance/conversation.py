"""A short notation for conversations, for tests with many histories.

A line such as `"u +a,b -a -b a"` is a conversation: a user message, calls of tools `a` and `b`, the
results of both, and an assistant message.
"""

from __future__ import annotations

from holdfast.session import Session
from holdfast.turn import Turn
from holdfast.values import Message, ToolCall


def parse_conversation(line: str) -> list[Message]:
    """Make the messages of a line: u(ser), a(ssistant), s(ystem), +calls, -results."""
    return [_message(word, f"{word}{at}") for at, word in enumerate(line.split(), 1)]


def _message(word: str, text: str) -> Message:
    if word.startswith("+"):
        return call_message(*word[1:].split(","))
    if word.startswith("-"):
        return Message.tool(word[1:], f"result {text}")
    make = {"u": Message.user, "a": Message.assistant, "s": Message.system}[word]
    return make(text)


def call_message(*calls: str) -> Message:
    """Return a message that calls tools."""
    return Message.assistant("", tool_calls=[ToolCall(call, "tool") for call in calls])


def take_turn(session: Session, text: str) -> Turn:
    """Run a turn of two messages: a question, and its answer in capitals."""
    with session.turn() as turn:
        turn.user(text)
        turn.assistant(text.upper())
    return turn


def texts(session: Session, *, branch: int | None = None) -> list[str]:
    """Return the texts of a session's messages."""
    return [message.text for message in session.messages(branch=branch)]


def read_session(session: Session) -> tuple[object, ...]:
    """Return everything that can be read of a session."""
    return (
        session.info(),
        session.messages(),
        session.branches(),
        session.turns(),
        session.queued(),
        session.usage(),
        session.lineage(),
        session.children(),
    )
