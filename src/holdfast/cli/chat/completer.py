"""Tab completion in a chat: commands, and their sessions, save points and models.

Only lines that start with a slash are completed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from holdfast.cli.chat import save_points
from holdfast.cli.chat.slash_commands import COMMANDS, ArgumentKind
from holdfast.cli.output.humanize import ago, shorten
from holdfast.cli.output.labels import is_typeable
from holdfast.cli.output.sanitize import sanitize
from holdfast.errors import HoldfastError
from holdfast.values import SessionInfo

if TYPE_CHECKING:
    from holdfast.cli.chat.controller import ChatController

_MAX_SESSIONS: Final = 20
_MODELS: Final = ("openai:", "anthropic:", "local", "local:")


class ChatCompleter(Completer):
    """Completes commands and their arguments."""

    def __init__(self, chat: ChatController) -> None:
        self._chat = chat

    def get_completions(
        self,
        document: Document,  # noqa: ARG002 - prompt_toolkit's own
        complete_event: CompleteEvent,  # noqa: ARG002 - as above
    ) -> Iterable[Completion]:
        """Return nothing: completions may read the store, which is asynchronous."""
        return ()

    async def get_completions_async(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - as above
    ) -> AsyncGenerator[Completion, None]:
        """Yield completions for the text before the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in document.text:
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            for found in _commands(name):
                yield found
            return
        command = COMMANDS.get(name)
        try:
            offered = (
                []
                if command is None
                else await self._argument_completions(command.argument, rest.lstrip())
            )
        except HoldfastError:
            return
        for found in offered:
            yield found

    async def _argument_completions(self, takes: ArgumentKind, prefix: str) -> list[Completion]:
        if takes == "session":
            page = await self._chat.context.store.sessions(text=prefix or None, limit=_MAX_SESSIONS)
            return [_session(info, prefix) for info in page]
        if takes == "point" and self._chat.context.session is not None:
            info = await self._chat.context.session.info()
            named = [
                point for point in save_points.save_points(info) if point.name.startswith(prefix)
            ]
            return [
                _plain(point.name, prefix, f"message {point.seq}")
                for point in named
                if sanitize(point.name) == point.name
            ]
        if takes == "model":
            return [_plain(name, prefix, "") for name in _MODELS if name.startswith(prefix)]
        return []


def _commands(prefix: str) -> Iterable[Completion]:
    for command in COMMANDS.values():
        if command.name.startswith(prefix.lower()):
            given = f" {command.usage}" if command.usage else ""
            yield Completion(
                f"/{command.name}",
                start_position=-len(prefix) - 1,
                display=f"/{command.name}{given}",
                display_meta=command.help,
            )


def _session(info: SessionInfo, prefix: str) -> Completion:
    """Complete a session by its key or id, and describe it by age and title."""
    key = info.key if info.key and is_typeable(info.key) else info.id
    known = sanitize(shorten(info.title or info.preview or "", 50))
    return _plain(key, prefix, f"{ago(info.updated_at)}  {known}")


def _plain(text: str, prefix: str, about: str) -> Completion:
    return Completion(text, start_position=-len(prefix), display_meta=about)
