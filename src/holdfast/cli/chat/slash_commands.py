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
from holdfast.cli.output.humanize import ago, count, money, short, size, words
from holdfast.cli.output.labels import called
from holdfast.cli.output.screen import Column, Span
from holdfast.cli.output.transcript import Look, Messages, ledger, one_line
from holdfast.errors import BadQuery, NotFound
from holdfast.values import Content, Goal, Head, Hit, Message, SessionInfo, UsageReport

if TYPE_CHECKING:
    from holdfast.cli.chat.controller import Talk

Run: TypeAlias = Callable[["Talk", str], Awaitable[None]]
Takes: TypeAlias = Literal["", "session", "point", "words", "model"]

_WORD: Final = re.compile(r"/([A-Za-z_-]*|\?)(?:\s+(.*))?", re.DOTALL)
_SHOWN: Final = 10
_NEAR: Final = 0.5
_COLUMNS: Final = (
    Column("MODEL"),
    Column("INPUT", right=True, whole=True),
    Column("OUTPUT", right=True, whole=True),
    Column("COST", right=True, whole=True),
)


class Command(NamedTuple):
    """A command: its name, usage and help, and whether it is available while a turn runs."""

    name: str
    given: str
    help: str
    run: Run
    takes: Takes
    anytime: bool


COMMANDS: Final[dict[str, Command]] = {}
_OTHER_NAMES: Final = {
    "quit": "exit",
    "q": "exit",
    "h": "help",
    "?": "help",
    "": "help",
    "rename": "title",
}


def _command(
    name: str, given: str = "", *, takes: Takes = "", anytime: bool = False
) -> Callable[[Run], Run]:
    """Register a function as a command; the first line of its docstring is the help."""

    def decorate(function: Run) -> Run:
        line = (function.__doc__ or "").partition("\n")[0]
        COMMANDS[name] = Command(name, given, line, function, takes, anytime)
        return function

    return decorate


def parse(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a command; `None` if the text is a message.

    A path (`/etc/hosts says …`) and text that starts with two slashes are messages.
    """
    found = _WORD.fullmatch(text.strip())
    return None if found is None else (found[1].lower(), (found[2] or "").strip())


def spoken(text: str) -> str:
    """Return a message without the extra slash that marks it as one."""
    return text[1:] if text.startswith("//") else text


async def run(chat: Talk, name: str, rest: str) -> None:
    """Run a command; suggest a similar one if there is none of this name."""
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        chat.note(unknown(name), "yellow")
        return
    if chat.running and not command.anytime:
        chat.note(f"/{command.name} is not available while a turn runs; Ctrl-C or /stop ends it")
        return
    await command.run(chat, rest)


def unknown(name: str) -> str:
    """Return the message for an unknown command, with a similar one."""
    similar = difflib.get_close_matches(name, COMMANDS, 1, _NEAR) or [
        known for known in COMMANDS if known.startswith(name[:2])
    ]
    suggestion = f"did you mean /{similar[0]}? " if similar else ""
    return f"there is no /{name}; {suggestion}/help lists all"


# --------------------------------------------------------------------------------------- sessions


@_command("help", "[COMMAND]", anytime=True)
async def help_(chat: Talk, rest: str) -> None:
    """List the commands and keys."""
    name = rest.removeprefix("/")
    listed = [COMMANDS[_OTHER_NAMES.get(name, name)]] if _knows(name) else COMMANDS.values()
    out = chat.out
    if rest and not _knows(name):
        chat.note(unknown(name), "yellow")
        return
    widest = max(len(f"{c.name} {c.given}") for c in COMMANDS.values()) + 2
    for command in listed:
        out.fact(f"  /{f'{command.name} {command.given}'.rstrip():<{widest}}", command.help)
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


def _knows(name: str) -> bool:
    return bool(name) and _OTHER_NAMES.get(name, name) in COMMANDS


@_command("new")
async def new(chat: Talk, rest: str) -> None:  # noqa: ARG001 - all commands have it
    """Start a new conversation; this one is kept."""
    before = chat.desk.session
    chat.desk.open_none()
    chat.waiting.clear()
    chat.note("a new conversation")
    if before is not None:
        chat.note(f"the previous one is kept: /resume {called(await before.info())}")


@_command("sessions", "[WORDS]", takes="words")
async def sessions(chat: Talk, rest: str) -> None:
    """Choose another session from a list, with type-to-filter and preview."""
    chosen = await chat.front.pick(chat, rest)
    if chosen is not None:
        await _switch(chat, await chat.desk.store.get(chosen))


@_command("resume", "REF", takes="session")
async def resume(chat: Talk, rest: str) -> None:
    """Continue another session, by its id, key or title."""
    if not rest:
        await sessions(chat, "")
        return
    await _switch(chat, await chat.desk.store.get(rest))


async def _switch(chat: Talk, session: AsyncSession) -> None:
    if chat.desk.session is not None and chat.desk.session.id == session.id:
        chat.note("this is the session you are in")
        return
    await chat.open_session(session)


@_command("session", anytime=True)
async def session_(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Show this session's id, directory, size and state."""
    session = await _here(chat)
    info = await session.info()
    names = [point.name for point in save_points.points(info)]
    facts: tuple[tuple[str, str | None], ...] = (
        ("title", info.title),
        ("id", info.id),
        ("key", info.key),
        ("store", str(chat.desk.store.url)),
        ("works in", info.cwd),
        ("scope", info.scope),
        ("holds", f"{count(info.messages, 'message')}, {count(info.turns, 'turn')}"),
        ("branches", str(info.branches) if info.branches > 1 else None),
        ("from", info.parent and f"{info.relation} of {short(info.parent)}"),
        ("forks", str(info.forks) if info.forks else None),
        ("points", ", ".join(names) or None),
        ("state", info.state),
        ("goal", None if info.goal is None else f"{info.goal.objective} ({info.goal.state})"),
        ("created", ago(info.created_at)),
        ("active", ago(info.updated_at)),
    )
    _draw_facts(chat, facts)


@_command("title", "[TEXT]")
async def title(chat: Talk, rest: str) -> None:
    """Set this session's title, or show it."""
    if not rest:
        info = await (await _here(chat)).info()
        chat.note(f"title: {info.title}" if info.title else "it has no title; /title TEXT sets one")
        return
    info = await (await chat.desk.in_session()).update(title=" ".join(rest.split()))
    chat.note(f"title: {info.title}")


# ----------------------------------------------------------------------------------- going back


@_command("undo", "[N]")
async def undo(chat: Talk, rest: str) -> None:
    """Undo the last turn, or the last N; /redo brings it back."""
    session = await _here(chat)
    before = await session.messages(limit=1)
    if not before:
        raise BadQuery("there is nothing to undo")
    turns = _number(rest, 1)
    head = await session.undo(turns)
    taken = (before[0].seq or 0) - head.seq
    chat.note(f"took back {count(taken, 'message')}; /redo brings them back")
    await _show_end(chat, session, head)


@_command("redo")
async def redo(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Undo the last undo, rewind or drop."""
    session = await _here(chat)
    head = await session.redo()
    await _show_end(chat, session, head)


@_command("rewind", "[NAME|N]", takes="point")
async def rewind(chat: Talk, rest: str) -> None:
    """Go back to a saved point, or to message N (/history shows the numbers)."""
    session = await _here(chat)
    if not rest:
        _list_points(chat, await session.info(), "/rewind NAME goes back to one")
        return
    head = await session.rewind(await save_points.place(session, rest))
    chat.note("went back; /redo brings the rest back")
    await _show_end(chat, session, head)


@_command("save", "[NAME]")
async def save(chat: Talk, rest: str) -> None:
    """Save this point under a name, for /rewind NAME and /fork NAME."""
    session = await _here(chat)
    if not rest:
        _list_points(chat, await session.info(), "/save NAME saves this one")
        return
    point = await save_points.save(session, rest)
    chat.note(f"message {point.seq} is saved as {point.name!r}: /rewind {point.name}")


@_command("fork", "[NAME|N]", takes="point")
async def fork(chat: Talk, rest: str) -> None:
    """Fork a new session here, or at a saved point or message N, and continue in it."""
    session = await _here(chat)
    made = await fork_at(session, rest or None)
    before = called(await session.info())
    await chat.desk.open(made)
    chat.waiting.clear()
    head = await made.head()
    at = "" if not rest else f" at message {head.seq}"
    chat.note(f"forked{at}; the other session stays as it is (/resume {before})")


async def fork_at(session: AsyncSession, at: str | None) -> AsyncSession:
    """Fork a session at its head, or at a saved point or message."""
    return await session.fork(None if at is None else await save_points.place(session, at))


@_command("retry")
async def retry(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Send the last message again; the previous answer is kept on its own branch."""
    session = await _here(chat)
    newest = await session.messages(limit=200)
    message = next((m for m in reversed(newest) if resume_banner.is_said(m)), None)
    if message is None or message.seq is None:
        raise BadQuery("there is no message to send again")
    chat.agent()  # Raises before anything is moved if there is no model.
    content = _again(message)
    await _back_before(session, message.seq)
    chat.drawing.show_said(message.text)
    chat.front.show()
    await chat.say(content)


async def _back_before(session: AsyncSession, seq: int) -> None:
    if seq > 1:
        await session.rewind(seq - 1)
    else:
        await session.clear()


def _again(message: Message) -> Content:
    return message.text if all(hasattr(part, "text") for part in message.parts) else message.parts


@_command("history", "[N]", anytime=True)
async def history(chat: Talk, rest: str) -> None:
    """Show the last messages, or the last N, with their numbers."""
    session = await _here(chat)
    found = await session.messages(limit=_number(rest, _SHOWN))
    drawn = Messages(chat.out, ledger(await session.turns()), Look())
    for message in found:
        drawn.draw(message)
    drawn.end_fold()
    earlier = (found[0].seq or 1) - 1 if found else 0
    if earlier:
        chat.note(f"{count(earlier, 'earlier message')}: /history {len(found) + earlier} shows all")
    elif not found:
        chat.note("the conversation is empty")


@_command("search", "WORDS", takes="words", anytime=True)
async def search(chat: Talk, rest: str) -> None:
    """Search all sessions."""
    if not rest:
        raise BadQuery('missing search terms: words, "a phrase", role:user, since:7d')
    store = chat.desk.store
    await store.catch_up_index()
    page = await store.search(rest, limit=_SHOWN)
    for hit in page:
        chat.out.line(*_where(hit))
        chat.out.line("  ", *_marked(hit))
    if not page.items:
        chat.note("nothing found")
        return
    chat.note(f"/resume {short(page.items[0].session_id)} goes to the first")


def _where(hit: Hit) -> list[Span]:
    matched = "title" if hit.seq is None else f"#{hit.seq} {hit.role}"
    more = f"  and {count(hit.more, 'more match', 'more matches')}" if hit.more else ""
    return [
        (short(hit.session_id), "bold"),
        (f"  {matched}", "cyan"),
        (f"  {ago(hit.created_at)}", "dim"),
        f"  {words(hit.title or '', 60)}",
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
async def goal(chat: Talk, rest: str) -> None:
    """Set a goal that the agent works towards by itself, show it, or end it."""
    if not rest:
        info = await (await _here(chat)).info()
        _draw_goal(chat, info.goal)
    elif rest in {"done", "cancel"}:
        await _end_goal(chat, rest)
    else:
        session = await chat.desk.in_session()
        await session.update(goal=Goal(rest, started_at=datetime.now(UTC)))
        chat.note(f"goal: {words(rest)}", "cyan")
        chat.front.show()
        await chat.say(rest)


def _draw_goal(chat: Talk, goal: Goal | None) -> None:
    if goal is None:
        chat.note("there is no goal; /goal TEXT sets one, and the agent works towards it")
        return
    facts = (("goal", goal.objective), ("state", goal.state), ("so far", goal.summary))
    _draw_facts(chat, (*facts, ("recap", goal.recap), ("turns", str(goal.rounds))))


async def _end_goal(chat: Talk, how: str) -> None:
    session = await _here(chat)
    goal = (await session.info()).goal
    if goal is None or goal.state != "active":
        raise BadQuery("there is no goal to end")
    state: Literal["completed", "cancelled"] = "completed" if how == "done" else "cancelled"
    await session.update(
        goal=msgspec.structs.replace(goal, state=state, ended_at=datetime.now(UTC))
    )
    chat.note(f"the goal is {state}")


@_command("compact")
async def compact(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Summarise the older messages, so that the model is sent less."""
    session = await _here(chat)
    agent = chat.agent()
    chat.note("summarising …")
    chat.front.show()
    made = await agent.summarize(session)
    if made is None:
        chat.note("there are too few messages to summarise")
        return
    by = "" if made.by == "model" else " (an extract: the model failed)"
    chat.note(f"a summary now stands for messages 1 to {made.upto}{by}; all stay readable")


@_command("window", anytime=True)
async def window(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Show what the model would be sent now."""
    session = await _here(chat)
    agent = chat.desk.agent
    made = await (session.window() if agent is None else agent.window(session))
    draw_window(chat.out, made, whole="/history shows all")


@_command("model", "[NAME]", takes="model")
async def model(chat: Talk, rest: str) -> None:
    """Show the model, or switch to another: openai:NAME, anthropic:NAME, local."""
    if rest:
        await chat.desk.choose_model(rest)
    chat.draw_model()


@_command("usage", anytime=True)
async def usage(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Show the tokens and the cost of this session."""
    found = await (await _here(chat)).usage()
    if not found.usage.total:
        chat.note("no tokens were used yet")
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
async def export(chat: Talk, rest: str) -> None:
    """Write this session to a file; what looks like a secret is left out."""
    session = await _here(chat)
    path = _file(rest or f"holdfast-{short(session.id)}.jsonl")
    made = await chat.desk.store.export(path, session.id)
    review = made.review
    removed = 0 if review is None else review.replaced + review.left_out
    secrets = f"; {count(removed, 'secret')} left out" if removed else ""
    chat.note(f"{count(made.messages, 'message')}, {size(made.size)}: {made.path}{secrets}")


def _file(name: str) -> Path:
    return Path(name).expanduser()


@_command("status", anytime=True)
async def status(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Show the model, the session, what runs and what is queued."""
    context = chat.desk
    info = None if context.session is None else await context.session.info()
    queued = [] if context.session is None else await context.session.queued()
    answering = None if context.agent is None else context.agent.model.name
    facts: tuple[tuple[str, str | None], ...] = (
        ("model", answering or "none: /model chooses one"),
        ("session", "none yet" if info is None else f"{resume_banner.name(info)} {short(info.id)}"),
        ("turns", None if info is None else str(info.turns)),
        ("running", chat.drawing.status if chat.running else "nothing"),
        ("queued", "; ".join(words(item.message.text, 60) for item in queued) or None),
        ("goal", info.goal.objective if info and info.goal else None),
        ("store", str(context.store.url)),
        ("works in", context.root),
        ("scope", context.scope),
        ("run", context.run_id),
    )
    _draw_facts(chat, facts)


@_command("stop", anytime=True)
async def stop(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Stop the running turn; what came so far is kept."""
    if not chat.stop():
        chat.note("no turn is running")


@_command("exit", anytime=True)
async def exit_(chat: Talk, rest: str) -> None:  # noqa: ARG001
    """Quit; a running turn is stopped and kept."""
    chat.front.leave()


# ---------------------------------------------------------------------------------------- common


async def _here(chat: Talk) -> AsyncSession:
    if chat.desk.session is None:
        raise NotFound("the conversation is empty")
    return chat.desk.session


def _number(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**8):
        raise BadQuery(f"{text!r} is not a number from 1 to 99,999,999")
    return int(text)


def _draw_facts(chat: Talk, facts: tuple[tuple[str, str | None], ...]) -> None:
    for label, value in facts:
        if value is not None:
            chat.out.fact(f"  {label:<10}", value)


def _list_points(chat: Talk, info: SessionInfo, hint: str) -> None:
    for point in save_points.points(info):
        chat.out.line(("  ", ""), (point.name, "bold"), (f"  message {point.seq}", "dim"))
    chat.note(
        hint if save_points.points(info) else "no point is saved yet; /save NAME saves this one"
    )


async def _show_end(chat: Talk, session: AsyncSession, head: Head) -> None:
    newest = await session.messages(limit=1)
    if not newest:
        chat.note("the conversation is empty now")
        return
    chat.out.brief(
        (f"  it ends with message {head.seq}: ", "dim"), f"{newest[0].role}: {one_line(newest[0])}"
    )
