"""The session picker: a full-screen list of sessions with filter and preview.

Typed text filters the list; below it is the end of the selected conversation. The list shows the
sessions of the current directory; Tab switches to all sessions.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from typing import Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from holdfast.cli.chat import resume_banner
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.turn_view import MARK
from holdfast.cli.output.humanize import count
from holdfast.cli.output.screen import Screen, TerminalScreen, cells, sanitized_text
from holdfast.cli.output.transcript import MessagePrinter
from holdfast.errors import HoldfastError
from holdfast.values import Message, SessionInfo

_MAX_SESSIONS: Final = 200
_PREVIEW_MESSAGES: Final = 6
_DEBOUNCE_S: Final = 0.05
_MIN_ROWS: Final = 3
_STYLE: Final = Style.from_dict(
    {
        "title": "bold ansicyan",
        "faint": "dim",
        "chosen": "reverse",
        "rule": "dim",
    }
)


class Picker:
    """A list of sessions, and a preview of the selected one."""

    def __init__(self, context: ChatContext, text: str, output: Output) -> None:
        """`text` is the initial filter."""
        self._context = context
        self._everywhere = False
        self._sessions: Sequence[SessionInfo] = ()
        self._more = False
        self._selected = 0
        self._previews: dict[str, Sequence[Message]] = {}
        self._error: str | None = None
        self._reload_task: asyncio.Task[None] | None = None
        self._filter = Buffer(multiline=False, on_text_changed=lambda _: self._reload())
        self._filter.text = text
        self._app: Application[str | None] = Application(
            layout=Layout(self._layout(), focused_element=self._filter),
            key_bindings=self._keys(),
            style=_STYLE,
            output=output,
            full_screen=True,
            enable_page_navigation_bindings=False,
        )
        self._app.ttimeoutlen = 0.05

    async def run(self) -> str | None:
        """Let the user choose a session; return its id, or `None`."""
        try:
            return await self._app.run_async(pre_run=self._reload, handle_sigint=False)
        except EOFError:
            return None
        finally:
            if self._reload_task is not None:
                self._reload_task.cancel()
                await asyncio.gather(self._reload_task, return_exceptions=True)

    def close(self) -> None:
        """Close the picker without a choice."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit(result=None)

    # ------------------------------------------------------------------------------------- reading

    def _reload(self) -> None:
        """Reload the list after a short delay, as the user may type more."""
        if self._reload_task is not None:
            self._reload_task.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # `run` loads the list first.
        self._reload_task = loop.create_task(self._load())

    async def _load(self) -> None:
        await asyncio.sleep(_DEBOUNCE_S)
        text = self._filter.text.strip()
        cwd = None if self._everywhere else self._context.cwd
        try:
            page = await self._context.store.sessions(
                text=text or None, cwd=cwd, limit=_MAX_SESSIONS
            )
            self._sessions, self._more, self._error = page.items, page.cursor is not None, None
        except HoldfastError as error:
            self._sessions, self._error = (), str(error)
        self._selected = min(self._selected, max(0, len(self._sessions) - 1))
        self._app.invalidate()
        await self._preview()

    async def _preview(self) -> None:
        info = self._selected_session()
        if info is None or info.id in self._previews:
            return
        try:
            session = await self._context.store.get(info.id)
            self._previews[info.id] = await session.messages(limit=_PREVIEW_MESSAGES)
        except HoldfastError:
            self._previews[info.id] = ()
        self._app.invalidate()

    def _selected_session(self) -> SessionInfo | None:
        return self._sessions[self._selected] if self._sessions else None

    def _move(self, by: int) -> None:
        self._selected = max(0, min(len(self._sessions) - 1, self._selected + by))
        self._app.create_background_task(self._preview())

    # ------------------------------------------------------------------------------------- drawing

    def _layout(self) -> HSplit:
        return HSplit(
            [
                Window(FormattedTextControl(self._heading), height=1),
                Window(
                    BufferControl(self._filter),
                    height=1,
                    get_line_prefix=lambda _line, _wrap: [("class:title", f"filter {MARK}")],
                ),
                Window(height=1),
                Window(FormattedTextControl(self._list), height=self._list_height),
                Window(height=1, char="─", style="class:rule"),
                Window(FormattedTextControl(self._preview_text), wrap_lines=False),
                Window(FormattedTextControl(self._footer), height=1),
            ]
        )

    def _heading(self) -> StyleAndTextTuples:
        number = f"{count(len(self._sessions), 'session')}{' and more' if self._more else ''}"
        where = "everywhere" if self._everywhere else f"in {sanitized_text(self._context.cwd)}"
        return [("class:title", "sessions"), ("class:faint", f"  {number} {where}")]

    def _footer(self) -> StyleAndTextTuples:
        other = "this directory only" if self._everywhere else "everywhere"
        keys = f"Enter open · ↑↓ choose · Tab {other} · Esc back"
        return [("class:faint", keys)]

    def _rows(self) -> int:
        return self._app.output.get_size().rows

    def _list_height(self) -> Dimension:
        rows = max(_MIN_ROWS, self._rows() // 2 - 3)
        return Dimension.exact(max(1, min(len(self._sessions) or 1, rows)))

    def _list(self) -> StyleAndTextTuples:
        if self._error is not None:
            return [("class:faint", sanitized_text(self._error))]
        if not self._sessions:
            return [("class:faint", "no session matches; Tab searches everywhere")]
        rows = self._list_height().preferred
        first = max(0, min(self._selected - rows // 2, len(self._sessions) - rows))
        lines: StyleAndTextTuples = []
        for n, info in enumerate(self._sessions[first : first + rows], first):
            style = "class:chosen" if n == self._selected else ""
            lines.append((style, self._line(info)))
            lines.append(("", "\n"))
        return lines[:-1]

    def _line(self, info: SessionInfo) -> str:
        id, active, turns, title = (
            sanitized_text(span) for span in resume_banner.session_row(info)
        )
        line = f"{id}  {active:>10}  {turns:>4}  {title}"
        columns = self._app.output.get_size().columns
        while cells(line) > columns:
            line = line[:-1]
        return line + " " * (columns - cells(line))

    def _preview_text(self) -> AnyFormattedText:
        info = self._selected_session()
        messages = () if info is None else self._previews.get(info.id)
        if messages is None:
            return [("class:faint", "reading …")]

        def draw(screen: Screen) -> None:
            shown = MessagePrinter(screen, {})
            for message in messages:
                shown.draw(message)
            shown.end_fold()

        rows = max(_MIN_ROWS, self._rows() - self._list_height().preferred - 5)
        return ANSI("\n".join(render(draw).rstrip("\n").split("\n")[-rows:]))

    # ---------------------------------------------------------------------------------------- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        def moving(by: int, *names: str) -> None:
            for name in names:
                keys.add(name)(lambda _: self._move(by))

        moving(-1, "up", "c-p")
        moving(1, "down", "c-n")
        moving(-10, "pageup")
        moving(10, "pagedown")

        @keys.add("enter")
        def _open(event: KeyPressEvent) -> None:
            chosen = self._selected_session()
            if chosen is not None:
                event.app.exit(result=chosen.id)

        @keys.add("tab")
        def _other(event: KeyPressEvent) -> None:  # noqa: ARG001 - prompt_toolkit's own
            self._everywhere = not self._everywhere
            self._reload()

        @keys.add("escape", eager=True)
        @keys.add("c-c")
        @keys.add("c-d")
        def _back(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys


def render(draw: Callable[[Screen], None]) -> str:
    """Return what `draw` draws, as text with a terminal's escape sequences."""
    text = io.StringIO()
    draw(TerminalScreen(text))
    return text.getvalue()
