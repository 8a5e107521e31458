"""The slash commands of a chat.

Each is a function of the controller and the text after the command's name. Most of them are
operations of the session; they print what they did and how to undo it. While a turn runs, only
commands that do not change the session's history are available.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.aio.session import AsyncSession
from holdfast.cli.chat import resume_banner, save_points
from holdfast.cli.commands.window import draw as draw_window
from holdfast.cli.output.humanize import ago, count, money, short_id, shorten, size
from holdfast.cli.output.labels import short_name
from holdfast.cli.output.screen import Span, TableColumn
from holdfast.cli.output.transcript import DisplayOptions, MessagePrinter, ledger, message_preview
from holdfast.errors import BadQuery, NotFound
from holdfast.values import Content, Goal, Head, Hit, Message, SessionInfo, UsageReport

if TYPE_CHECKING:
    from holdfast.cli.chat.controller import ChatController

CommandFunction: TypeAlias = Callable[["ChatController", str], Awaitable[None]]
ArgumentKind: TypeAlias = Literal["", "session", "point", "words", "model"]

_COMMAND_LINE: Final = re.compile(r"/([A-Za-z_-]*|\?)(?:\s+(.*))?", re.DOTALL)
_DEFAULT_COUNT: Final = 10
_MIN_SIMILARITY: Final = 0.5
_COLUMNS: Final = (
    TableColumn("MODEL"),
    TableColumn("INPUT", right=True, whole=True),
    TableColumn("OUTPUT", right=True, whole=True),
    TableColumn("COST", right=True, whole=True),
)


class SlashCommand(NamedTuple):
    """A command: its name, usage and help, and whether it is available while a turn runs."""

    name: str
    usage: str
    help: str
    run: CommandFunction
    argument: ArgumentKind
    anytime: bool


COMMANDS: Final[dict[str, SlashCommand]] = {}
_ALIASES: Final = {
    "quit": "exit",
    "q": "exit",
    "h": "help",
    "?": "help",
    "": "help",
    "rename": "title",
}


def _command(
    name: str, given: str = "", *, takes: ArgumentKind = "", anytime: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as a command; the first line of its docstring is the help."""

    def decorate(function: CommandFunction) -> CommandFunction:
        line = (function.__doc__ or "").partition("\n")[0]
        COMMANDS[name] = SlashCommand(name, given, line, function, takes, anytime)
        return function

    return decorate


def parse(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a command; `None` if the text is a message.

    A path (`/etc/hosts says …`) and text that starts with two slashes are messages.
    """
    found = _COMMAND_LINE.fullmatch(text.strip())
    return None if found is None else (found[1].lower(), (found[2] or "").strip())


def unescape(text: str) -> str:
    """Return a message without the extra slash that marks it as one."""
    return text[1:] if text.startswith("//") else text


def escape(text: str) -> str:
    """Return a message as it is typed: with an extra slash if it would be a command without."""
    return f"/{text}" if text.startswith("//") or parse(text) is not None else text


async def run(chat: ChatController, name: str, rest: str) -> None:
    """Run a command; suggest a similar one if there is none of this name."""
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        chat.print_note(unknown_command(name), "yellow")
        return
    if chat.running and not command.anytime:
        chat.print_note(
            f"/{command.name} is not available while a turn runs; Ctrl-C or /stop ends it"
        )
        return
    await command.run(chat, rest)


def unknown_command(name: str) -> str:
    """Return the message for an unknown command, with a similar one."""
    similar = difflib.get_close_matches(name, COMMANDS, 1, _MIN_SIMILARITY) or [
        known for known in COMMANDS if known.startswith(name[:2])
    ]
    suggestion = f"did you mean /{similar[0]}? " if similar else ""
    return f"there is no /{name}; {suggestion}/help lists all"


# --------------------------------------------------------------------------------------- sessions


@_command("help", "[COMMAND]", anytime=True)
async def help_(chat: ChatController, rest: str) -> None:
    """List the commands and keys."""
    name = rest.removeprefix("/")
    listed = [COMMANDS[_ALIASES.get(name, name)]] if _is_known(name) else COMMANDS.values()
    out = chat.out
    if rest and not _is_known(name):
        chat.print_note(unknown_command(name), "yellow")
        return
    widest = max(len(f"{c.name} {c.usage}") for c in COMMANDS.values()) + 2
    for command in listed:
        out.fact(f"  /{f'{command.name} {command.usage}'.rstrip():<{widest}}", command.help)
    if not rest:
        out.line()
        for key, effect in _KEYS:
            out.fact(f"  {key:<{widest + 1}}", effect)


_KEYS: Final = (
    ("Enter", "Send. While a turn runs, the message is queued and sent next."),
    ("Alt-Enter, Ctrl-J", "Start a new line."),
    ("Ctrl-C", "Stop the running turn; what came so far is kept."),
    ("Ctrl-D", "Quit. Nothing is lost: the chat prints how to continue it."),
    ("//", "Start a message with a slash."),
)


def _is_known(name: str) -> bool:
    return bool(name) and _ALIASES.get(name, name) in COMMANDS


@_command("new")
async def new(chat: ChatController, rest: str) -> None:  # noqa: ARG001 - all commands have it
    """Start a new conversation; this one is kept."""
    before = chat.context.session
    chat.context.leave_session()
    chat.queued.clear()
    chat.print_note("a new conversation")
    if before is not None:
        chat.print_note(f"the previous one is kept: /resume {short_name(await before.info())}")


@_command("sessions", "[WORDS]", takes="words")
async def sessions(chat: ChatController, rest: str) -> None:
    """Choose another session from a list, with type-to-filter and preview."""
    chosen = await chat.view.pick(chat, rest)
    if chosen is not None:
        await _switch(chat, await chat.context.store.get(chosen))


@_command("resume", "REF", takes="session")
async def resume(chat: ChatController, rest: str) -> None:
    """Continue another session, by its id, key or title."""
    if not rest:
        await sessions(chat, "")
        return
    await _switch(chat, await chat.context.store.get(rest))


async def _switch(chat: ChatController, session: AsyncSession) -> None:
    if chat.context.session is not None and chat.context.session.id == session.id:
        chat.print_note("this is the session you are in")
        return
    if await chat.trusts_store():
        await chat.open_session(session)


@_command("session", anytime=True)
async def session_(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Show this session's id, directory, size and state."""
    session = await _current_session(chat)
    info = await session.info()
    names = [point.name for point in save_points.save_points(info)]
    facts: tuple[tuple[str, str | None], ...] = (
        ("title", info.title),
        ("id", info.id),
        ("key", info.key),
        ("store", str(chat.context.store.url)),
        ("works in", info.cwd),
        ("scope", info.scope),
        ("holds", f"{count(info.messages, 'message')}, {count(info.turns, 'turn')}"),
        ("branches", str(info.branches) if info.branches > 1 else None),
        ("from", info.parent and f"{info.relation} of {short_id(info.parent)}"),
        ("forks", str(info.forks) if info.forks else None),
        ("points", ", ".join(names) or None),
        ("state", info.state),
        ("goal", None if info.goal is None else f"{info.goal.objective} ({info.goal.state})"),
        ("created", ago(info.created_at)),
        ("active", ago(info.updated_at)),
    )
    _draw_facts(chat, facts)


@_command("title", "[TEXT]")
async def title(chat: ChatController, rest: str) -> None:
    """Set this session's title, or show it."""
    if not rest:
        info = await (await _current_session(chat)).info()
        chat.print_note(
            f"title: {info.title}" if info.title else "it has no title; /title TEXT sets one"
        )
        return
    info = await (await chat.context.ensure_session()).update(title=" ".join(rest.split()))
    chat.print_note(f"title: {info.title}")


# ----------------------------------------------------------------------------------- going back


@_command("undo", "[N]")
async def undo(chat: ChatController, rest: str) -> None:
    """Undo the last turn, or the last N; /redo brings it back."""
    session = await _current_session(chat)
    before = await session.messages(limit=1)
    if not before:
        raise BadQuery("there is nothing to undo")
    turns = _parse_count(rest, 1)
    head = await session.undo(turns)
    taken = (before[0].seq or 0) - head.seq
    chat.print_note(f"took back {count(taken, 'message')}; /redo brings them back")
    await _show_end(chat, session, head)


@_command("redo")
async def redo(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Undo the last undo, rewind or drop."""
    session = await _current_session(chat)
    head = await session.redo()
    await _show_end(chat, session, head)


@_command("rewind", "[NAME|N]", takes="point")
async def rewind(chat: ChatController, rest: str) -> None:
    """Go back to a saved point, or to message N (/history shows the numbers)."""
    session = await _current_session(chat)
    if not rest:
        _list_points(chat, await session.info(), "/rewind NAME goes back to one")
        return
    head = await session.rewind(await save_points.parse_position(session, rest))
    chat.print_note("went back; /redo brings the rest back")
    await _show_end(chat, session, head)


@_command("save", "[NAME]")
async def save(chat: ChatController, rest: str) -> None:
    """Save this point under a name, for /rewind NAME and /fork NAME."""
    session = await _current_session(chat)
    if not rest:
        _list_points(chat, await session.info(), "/save NAME saves this one")
        return
    point = await save_points.save(session, rest)
    chat.print_note(f"message {point.seq} is saved as {point.name!r}: /rewind {point.name}")


@_command("fork", "[NAME|N]", takes="point")
async def fork(chat: ChatController, rest: str) -> None:
    """Fork a new session here, or at a saved point or message N, and continue in it."""
    session = await _current_session(chat)
    made = await fork_at(session, rest or None)
    before = short_name(await session.info())
    await chat.context.open(made, chat.context.root)
    chat.queued.clear()
    head = await made.head()
    at = "" if not rest else f" at message {head.seq}"
    chat.print_note(f"forked{at}; the other session stays as it is (/resume {before})")


async def fork_at(session: AsyncSession, at: str | None) -> AsyncSession:
    """Fork a session at its head, or at a saved point or message."""
    return await session.fork(None if at is None else await save_points.parse_position(session, at))


@_command("retry")
async def retry(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Send the last message again; the previous answer is kept on its own branch."""
    session = await _current_session(chat)
    newest = await session.messages(limit=200)
    message = next((m for m in reversed(newest) if resume_banner.is_user_input(m)), None)
    if message is None or message.seq is None:
        raise BadQuery("there is no message to send again")
    chat.agent()  # Raises before anything is moved if there is no model.
    content = _content_of(message)
    await _rewind_before(session, message.seq)
    chat.turn_view.show_said(message.text)
    chat.view.show()
    await chat.send(content)


async def _rewind_before(session: AsyncSession, seq: int) -> None:
    if seq > 1:
        await session.rewind(seq - 1)
    else:
        await session.clear()


def _content_of(message: Message) -> Content:
    return message.text if all(hasattr(part, "text") for part in message.parts) else message.parts


@_command("history", "[N]", anytime=True)
async def history(chat: ChatController, rest: str) -> None:
    """Show the last messages, or the last N, with their numbers."""
    session = await _current_session(chat)
    found = await session.messages(limit=_parse_count(rest, _DEFAULT_COUNT))
    drawn = MessagePrinter(chat.out, ledger(await session.turns()), DisplayOptions())
    for message in found:
        drawn.draw(message)
    drawn.end_fold()
    earlier = (found[0].seq or 1) - 1 if found else 0
    if earlier:
        chat.print_note(
            f"{count(earlier, 'earlier message')}: /history {len(found) + earlier} shows all"
        )
    elif not found:
        chat.print_note("the conversation is empty")


@_command("search", "WORDS", takes="words", anytime=True)
async def search(chat: ChatController, rest: str) -> None:
    """Search all sessions."""
    if not rest:
        raise BadQuery('missing search terms: words, "a phrase", role:user, since:7d')
    store = chat.context.store
    await store.catch_up_index()
    page = await store.search(rest, limit=_DEFAULT_COUNT)
    for hit in page:
        chat.out.line(*_where(hit))
        chat.out.line("  ", *_marked(hit))
    if not page.items:
        chat.print_note("nothing found")
        return
    chat.print_note(f"/resume {short_id(page.items[0].session_id)} goes to the first")


def _where(hit: Hit) -> list[Span]:
    matched = "title" if hit.seq is None else f"#{hit.seq} {hit.role}"
    more = f"  and {count(hit.more, 'more match', 'more matches')}" if hit.more else ""
    return [
        (short_id(hit.session_id), "bold"),
        (f"  {matched}", "cyan"),
        (f"  {ago(hit.created_at)}", "dim"),
        f"  {shorten(hit.title or '', 60)}",
        (more, "dim"),
    ]


def _marked(hit: Hit) -> list[Span]:
    spans: list[Span] = []
    at = 0
    for start, end in hit.marks:
        spans += [hit.snippet[at:start], (hit.snippet[start:end], "bold yellow")]
        at = end
    return [*spans, hit.snippet[at:]]


# ------------------------------------------------------------------------------ goal and context


@_command("goal", "[TEXT|done|cancel]")
async def goal(chat: ChatController, rest: str) -> None:
    """Set a goal that the agent works towards by itself, show it, or end it."""
    if not rest:
        info = await (await _current_session(chat)).info()
        _draw_goal(chat, info.goal)
    elif rest in {"done", "cancel"}:
        await _end_goal(chat, rest)
    else:
        session = await chat.context.ensure_session()
        await session.update(goal=Goal(rest, started_at=datetime.now(UTC)))
        chat.print_note(f"goal: {shorten(rest)}", "cyan")
        chat.view.show()
        await chat.send(rest)


def _draw_goal(chat: ChatController, goal: Goal | None) -> None:
    if goal is None:
        chat.print_note("there is no goal; /goal TEXT sets one, and the agent works towards it")
        return
    facts = (("goal", goal.objective), ("state", goal.state), ("so far", goal.summary))
    _draw_facts(chat, (*facts, ("recap", goal.recap), ("turns", str(goal.rounds))))


async def _end_goal(chat: ChatController, how: str) -> None:
    session = await _current_session(chat)
    goal = (await session.info()).goal
    if goal is None or goal.state != "active":
        raise BadQuery("there is no goal to end")
    state: Literal["completed", "cancelled"] = "completed" if how == "done" else "cancelled"
    await session.update(
        goal=msgspec.structs.replace(goal, state=state, ended_at=datetime.now(UTC))
    )
    chat.print_note(f"the goal is {state}")


@_command("compact")
async def compact(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Summarise the older messages, so that the model is sent less."""
    session = await _current_session(chat)
    agent = chat.agent()
    chat.print_note("summarising …")
    chat.view.show()
    made = await agent.summarize(session)
    if made is None:
        chat.print_note("there are too few messages to summarise")
        return
    by = "" if made.by == "model" else " (an extract: the model failed)"
    chat.print_note(f"a summary now stands for messages 1 to {made.upto}{by}; all stay readable")


@_command("window", anytime=True)
async def window(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Show what the model would be sent now."""
    session = await _current_session(chat)
    agent = chat.context.agent
    made = await (session.window() if agent is None else agent.window(session))
    draw_window(chat.out, made, whole="/history shows all")


@_command("model", "[NAME]", takes="model")
async def model(chat: ChatController, rest: str) -> None:
    """Show the model, or switch to another: openai:NAME, anthropic:NAME, local."""
    if rest:
        await chat.context.choose_model(rest)
    chat.print_model()


@_command("usage", anytime=True)
async def usage(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Show the tokens and the cost of this session."""
    found = await (await _current_session(chat)).usage()
    if not found.usage.total:
        chat.print_note("no tokens were used yet")
        return
    chat.out.table(_COLUMNS, _usage_rows(found))


def _usage_rows(found: UsageReport) -> list[tuple[Span, ...]]:
    rows: list[tuple[Span, ...]] = [
        (one.model or "?", f"{one.usage.input:,}", f"{one.usage.output:,}", money(one.cost))
        for one in found.by_model
    ]
    if len(rows) > 1:
        both = found.usage
        rows.append((("all", "bold"), f"{both.input:,}", f"{both.output:,}", money(found.cost)))
    return rows


@_command("export", "[FILE]", anytime=True)
async def export(chat: ChatController, rest: str) -> None:
    """Write this session to a file; what looks like a secret is left out."""
    session = await _current_session(chat)
    path = _file(rest or f"holdfast-{short_id(session.id)}.jsonl")
    made = await chat.context.store.export(path, session.id)
    review = made.review
    removed = 0 if review is None else review.replaced + review.left_out
    secrets = f"; {count(removed, 'secret')} left out" if removed else ""
    chat.print_note(f"{count(made.messages, 'message')}, {size(made.size)}: {made.path}{secrets}")


def _file(name: str) -> Path:
    return Path(name).expanduser()


@_command("status", anytime=True)
async def status(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Show the model, the session, what runs and what is queued."""
    context = chat.context
    info = None if context.session is None else await context.session.info()
    queued = [] if context.session is None else await context.session.queued()
    answering = None if context.agent is None else context.agent.model.name
    facts: tuple[tuple[str, str | None], ...] = (
        ("model", answering or "none: /model chooses one"),
        (
            "session",
            "none yet"
            if info is None
            else f"{resume_banner.display_name(info)} {short_id(info.id)}",
        ),
        ("turns", None if info is None else str(info.turns)),
        ("running", chat.turn_view.status if chat.running else "nothing"),
        ("queued", "; ".join(shorten(item.message.text, 60) for item in queued) or None),
        ("goal", info.goal.objective if info and info.goal else None),
        ("store", str(context.store.url)),
        ("works in", context.root),
        ("scope", context.scope),
        ("run", context.run_id),
    )
    _draw_facts(chat, facts)


@_command("stop", anytime=True)
async def stop(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Stop the running turn; what came so far is kept."""
    if not chat.stop():
        chat.print_note("no turn is running")


@_command("exit", anytime=True)
async def exit_(chat: ChatController, rest: str) -> None:  # noqa: ARG001
    """Quit; a running turn is stopped and kept."""
    chat.view.leave()


# ---------------------------------------------------------------------------------------- common


async def _current_session(chat: ChatController) -> AsyncSession:
    if chat.context.session is None:
        raise NotFound("the conversation is empty")
    return chat.context.session


def _parse_count(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**8):
        raise BadQuery(f"{text!r} is not a number from 1 to 99,999,999")
    return int(text)


def _draw_facts(chat: ChatController, facts: tuple[tuple[str, str | None], ...]) -> None:
    for label, value in facts:
        if value is not None:
            chat.out.fact(f"  {label:<10}", value)


def _list_points(chat: ChatController, info: SessionInfo, hint: str) -> None:
    for point in save_points.save_points(info):
        chat.out.line(("  ", ""), (point.name, "bold"), (f"  message {point.seq}", "dim"))
    chat.print_note(
        hint
        if save_points.save_points(info)
        else "no point is saved yet; /save NAME saves this one"
    )


async def _show_end(chat: ChatController, session: AsyncSession, head: Head) -> None:
    newest = await session.messages(limit=1)
    if not newest:
        chat.print_note("the conversation is empty now")
        return
    chat.out.truncated_line(
        (f"  it ends with message {head.seq}: ", "dim"),
        f"{newest[0].role}: {message_preview(newest[0])}",
    )
