"""Tools that read the store: search sessions, read one, read the rest of a long output.

They see the session that they are called in and, of one tenant's sessions without the trash, those
of a scope or a directory: what was said in one project is not for the model of another. Any other
session is to them as one that does not exist. Their output is quoted as data (see `quote`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from holdfast import codec, validation
from holdfast.agent.tools.function_tools import ToolError, make_tool
from holdfast.agent.tools.protocol import Tool, ToolContext
from holdfast.agent.tools.quote import quoted
from holdfast.aio.session import AsyncSession
from holdfast.aio.store import AsyncStore
from holdfast.errors import AmbiguousRef, HoldfastError, Invalid, NotFound
from holdfast.values import (
    File,
    Hit,
    Message,
    Raw,
    SessionInfo,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    is_original,
)

MAX_OUTPUT_CHARS: Final = 20_000
_RESERVED_CHARS: Final = 1_000  # Characters reserved for the text around the quotation.
_MAX_HITS: Final = 50
_MAX_MESSAGES: Final = 100
_MAX_MESSAGE_CHARS: Final = 4_000
_MAX_CALL_CHARS: Final = 500


def session_tools(
    store: AsyncStore,
    *,
    scope: str | None = None,
    cwd: str | None = None,
    output: int = MAX_OUTPUT_CHARS,
) -> tuple[Tool, ...]:
    """Return the tools; they show at most about `output` characters at a time.

    They see the sessions of this scope, and of those that were started in the directory `cwd`; with
    neither, all sessions.
    """
    tools = SessionTools(store, scope=scope, cwd=cwd, output=output)
    return (
        make_tool(tools.session_search),
        make_tool(tools.session_read),
        make_tool(tools.read_output),
    )


class SessionTools:
    """The tools, for one store."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        scope: str | None = None,
        cwd: str | None = None,
        output: int = MAX_OUTPUT_CHARS,
    ) -> None:
        self._store = store
        self._scope = scope
        self._cwd = cwd
        self._output = max(output - _RESERVED_CHARS, _RESERVED_CHARS)

    async def session_search(
        self, context: ToolContext, query: str, session: str = "", limit: int = 10
    ) -> str:
        """Search this and earlier sessions; use session_read to read the messages around a hit.

        Args:
            query: Words to search for, all of which must match; "quotes" keep words together.
            session: The id of a session to search alone; by default the best hit of each session.
            limit: How many hits to return.
        """
        count = min(max(limit, 1), _MAX_HITS)
        only = None if not session else (await self._open(context, session)).id
        # A search in one session that may be seen needs no filter: it may be the one of the call.
        scope, cwd = (self._scope, self._cwd) if only is None else (None, None)
        try:
            found = await self._store.search(query, session=only, scope=scope, cwd=cwd, limit=count)
        except Invalid as error:
            raise ToolError(str(error)) from error
        missed = f"; {found.behind:,} older messages not searched yet" if found.behind else ""
        if not found.items:
            return f"(nothing was found{missed})"
        lines = _fitting(self._output, [_hit(hit, context.session.id) for hit in found])
        return quoted(f"{len(lines)} hits{missed}.", "\n".join(lines))

    async def session_read(
        self, context: ToolContext, session: str, start: int = 0, count: int = 20
    ) -> str:
        """Read messages of a session, such as those around a hit of session_search.

        Args:
            session: The session's id.
            start: The number of the first message to read; 0 for the newest ones.
            count: How many messages to read.
        """
        opened = await self._open(context, session)
        count = min(max(count, 1), _MAX_MESSAGES)
        try:
            if start > 0:
                messages = await opened.messages(after=start - 1, limit=count)
            else:
                messages = await opened.messages(limit=count)
        except HoldfastError as error:
            raise ToolError(f"session {opened.id} cannot be read: {error}") from error
        if not messages:
            return f"(session {opened.id} has no messages there)"
        shown = _fitting(self._output, [_render_message(message) for message in messages])
        last = messages[len(shown) - 1].seq or 0
        head = await opened.head()
        more = f" Continue with start={last + 1}." if last < head.seq else ""
        title = f"Messages {messages[0].seq} to {last} of {head.seq} in session {opened.id}."
        return quoted(f"{title}{more}", "\n\n".join(shown))

    async def _open(self, context: ToolContext, ref: str) -> AsyncSession:
        try:
            opened = await self._store.get(ref)
            if self._is_seen(context, await opened.info()):
                return opened
        except (AmbiguousRef, NotFound, Invalid) as error:
            # Those that match may be others than those that are seen: nothing is said of them.
            raise ToolError(f"there is no session {ref!r}; use its whole id.") from error
        raise ToolError(f"there is no session {ref!r}; use its whole id.")

    def _is_seen(self, context: ToolContext, info: SessionInfo) -> bool:
        if info.trashed:
            return False
        here = self._scope in {None, info.scope} and self._cwd in {None, info.cwd}
        return here or info.id == context.session.id

    async def read_output(self, handle: str, offset: int = 0, limit: int = MAX_OUTPUT_CHARS) -> str:
        """Read more of a tool's output that was shown shortened.

        Args:
            handle: The handle given where the output was shortened.
            offset: The first character to read; 0 is the first character of the output.
            limit: How many characters to read.
        """
        text = await self._stored_output(handle)
        offset = max(offset, 0)
        if offset >= len(text):
            raise ToolError(f"the output has only {len(text):,} characters.")
        shown = text[offset : offset + min(max(limit, 1), self._output)]
        end = offset + len(shown)
        more = f" Continue with offset={end}." if end < len(text) else " That is the end."
        what = f"Characters {offset:,} to {end:,} of {len(text):,} of an output.{more}"
        return quoted(what, shown)

    async def _stored_output(self, handle: str) -> str:
        handle = handle.strip().lower()
        if not validation.is_sha256(handle):
            raise ToolError("handle: not the handle of an output.")
        try:
            data = await self._store.blob(handle)
            return codec.decode_text(data)
        except NotFound as error:
            raise ToolError("there is no such output.") from error
        except UnicodeDecodeError as error:
            raise ToolError("the output is not text.") from error


def _fitting(room: int, texts: list[str]) -> list[str]:
    """Return as many texts as fit into `room` characters, at least one."""
    shown: list[str] = []
    for text in texts:
        room -= len(text) + 2
        if room < 0 and shown:
            break
        shown.append(text)
    return shown


def _hit(hit: Hit, current: str) -> str:
    here = " (this session)" if hit.session_id == current else ""
    title = f" “{_line(hit.title)}”" if hit.title else ""
    where = f"message {hit.seq}, {hit.role}" if hit.seq is not None else "title"
    when = f"{hit.created_at:%Y-%m-%d}" + (f", and {hit.more:,} more hits" if hit.more else "")
    return f"session {hit.session_id}{here}{title}, {where}, {when}: {_line(hit.snippet)}"


def _render_message(message: Message) -> str:
    when = "" if message.created_at is None else f", {message.created_at:%Y-%m-%d %H:%M} UTC"
    state = "" if message.status == "complete" else f", {message.status}"
    origin = "" if message.provenance is None else ", imported"
    text = "\n".join(text for text in _words(message) if text)
    return f"#{message.seq} {message.role}{origin}{when}{state}:\n{_cut(text, _MAX_MESSAGE_CHARS)}"


def _words(message: Message) -> Iterator[str]:
    """Return the parts of a message as text, without thinking."""
    for part in message.parts:
        if isinstance(part, Thinking):
            continue
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, ToolCall):
            given = json.dumps(part.arguments, ensure_ascii=False)
            yield f"[calls {part.name} {_cut(given, _MAX_CALL_CHARS)}]"
        elif isinstance(part, ToolResult):
            yield f"[result{' (error)' if part.error else ''}] {part.text}"
        elif isinstance(part, File):
            yield f"[file: {_line(part.name or 'without a name')}]"
        elif isinstance(part, Raw) and not is_original(part):
            yield f"[data of {_line(part.source)}]"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
