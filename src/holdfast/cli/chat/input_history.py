"""The input history of a chat: what the user said earlier, read from the store.

It has no file of its own, so what was erased from the store is not offered again. Neither is what
another person may have written: messages of an import, and all in a store that is not known to be
the user's. Commands are remembered until the chat ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Final

from prompt_toolkit.history import History

from holdfast.cli.chat import slash_commands
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.resume_banner import is_user_input
from holdfast.cli.output.sanitize import sanitize
from holdfast.errors import HoldfastError
from holdfast.values import Message

MAX_SESSIONS: Final = 10
MAX_MESSAGES: Final = 50  # of each session, replies included
_MAX_LENGTH: Final = 10_000  # characters; what is longer was not typed


class InputHistory(History):
    """The user's messages in the newest sessions of the chat's scope, else of its directory."""

    def __init__(self, context: ChatContext) -> None:
        super().__init__()
        self._context = context

    async def load(self) -> AsyncGenerator[str, None]:
        """Yield the input of this run and of earlier ones, newest first."""
        if not self._loaded and self._context.trust.is_known():
            with suppress(HoldfastError):
                self._loaded_strings += await self._read()
            self._loaded = True
        for text in tuple(self._loaded_strings):
            yield text

    async def _read(self) -> list[str]:
        """Read earlier input, each text once, from a bounded number of sessions and messages."""
        found: dict[str, None] = {}
        for info in await self._context.newest_sessions(MAX_SESSIONS):
            with suppress(HoldfastError):  # A damaged session hides only its own.
                session = await self._context.store.get(info.id)
                messages = await session.messages(limit=MAX_MESSAGES)
                found |= dict.fromkeys(_typed(message) for message in reversed(messages))
        found.pop("", None)
        return list(found)

    def load_history_strings(self) -> Iterable[str]:
        """Return nothing: `load` reads the store."""
        return ()

    def store_string(self, string: str) -> None:
        """Store nothing: a message is stored when it is sent, a command never."""


def _typed(message: Message) -> str:
    """Return what the user typed to send a message; "" if they cannot have typed it."""
    own = is_user_input(message) and message.provenance is None
    text = message.text.strip() if own else ""
    if len(text) > _MAX_LENGTH or sanitize(text, body=True) != text:
        return ""
    return slash_commands.escape(text)
