"""The commands of a chat: what begins with a slash.

Each is a function of the conversation and of the words behind its name. Most of them are verbs of
the session; they say what they did and how to take it back. While a turn runs, only those that
change nothing in the session's history are done.
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
from holdfast.cli.chat import recap, saving
from holdfast.cli.conversation import Look, Messages, ledger, one_line
from holdfast.cli.naming import called
from holdfast.cli.screen import Column, Span
from holdfast.cli.window import draw as draw_window
from holdfast.cli.wording import ago, count, money, short, size, words
from holdfast.errors import BadQuery, NotFound
from holdfast.records import Content, Goal, Head, Hit, Message, SessionInfo, UsageReport

if TYPE_CHECKING:
    from holdfast.cli.chat.talking import Talk

Run: TypeAlias = Callable[["Talk", str], Awaitable[None]]
Takes: TypeAlias = Literal["", "session", "place", "words", "model"]

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
    """A command: how it is written, what it does, and whether it can be done while a turn runs."""

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
    """Make a function a command; its docstring is the help."""

    def decorate(function: Run) -> Run:
        line = (function.__doc__ or "").partition("\n")[0]
        COMMANDS[name] = Command(name, given, line, function, takes, anytime)
        return function

    return decorate


def parse(text: str) -> tuple[str, str] | None:
    """Understand a command: its name and the rest; `None` if the text is something to say.

    A path (`/etc/hosts says …`) is no command, and two slashes say that it is none.
    """
    found = _WORD.fullmatch(text.strip())
    return None if found is None else (found[1].lower(), (found[2] or "").strip())


def spoken(text: str) -> str:
    """Return what is said, without the slash that says that it is no command."""
    return text[1:] if text.startswith("//") else text


async def run(talk: Talk, name: str, rest: str) -> None:
    """Do a command; say the nearest if there is none of this name."""
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        talk.note(unknown(name), "yellow")
        return
    if talk.running and not command.anytime:
        talk.note(f"a turn is running; /{command.name} has to wait: Ctrl-C or /stop ends it")
        return
    await command.run(talk, rest)


def unknown(name: str) -> str:
    """Say that there is no such command, and which is near."""
    near = difflib.get_close_matches(name, COMMANDS, 1, _NEAR) or [
        known for known in COMMANDS if known.startswith(name[:2])
    ]
    meant = f"did you mean /{near[0]}? " if near else ""
    return f"there is no /{name}; {meant}/help lists all"


# --------------------------------------------------------------------------------------- sessions


@_command("help", "[COMMAND]", anytime=True)
async def help_(talk: Talk, rest: str) -> None:
    """List what can be done here."""
    name = rest.removeprefix("/")
    wanted = [COMMANDS[_OTHER_NAMES.get(name, name)]] if _knows(name) else COMMANDS.values()
    out = talk.out
    if rest and not _knows(name):
        talk.note(unknown(name), "yellow")
        return
    widest = max(len(f"{c.name} {c.given}") for c in COMMANDS.values()) + 2
    for command in wanted:
        out.fact(f"  /{f'{command.name} {command.given}'.rstrip():<{widest}}", command.help)
    if not rest:
        out.line()
        for key, does in _KEYS:
            out.fact(f"  {key:<{widest + 1}}", does)


_KEYS: Final = (
    ("Enter", "Send. While a turn runs, what you send is queued and goes next."),
    ("Alt-Enter, Ctrl-J", "Begin a new line."),
    ("Ctrl-C", "Stop the turn that runs; what came so far is kept."),
    ("Ctrl-D", "Leave. Nothing is lost: the chat tells how to come back."),
    ("//", "Begin a message with a slash."),
)


def _knows(name: str) -> bool:
    return bool(name) and _OTHER_NAMES.get(name, name) in COMMANDS


@_command("new")
async def new(talk: Talk, rest: str) -> None:  # noqa: ARG001 - every command has words behind it
    """Begin a fresh conversation; this one is kept."""
    before = talk.desk.session
    talk.desk.open_none()
    talk.waiting.clear()
    talk.note("a new conversation")
    if before is not None:
        talk.note(f"the one before is kept: /resume {called(await before.info())}")


@_command("sessions", "[WORDS]", takes="words")
async def sessions(talk: Talk, rest: str) -> None:
    """Choose another session from a list, with type-to-filter and preview."""
    chosen = await talk.front.pick(talk, rest)
    if chosen is not None:
        await _switch(talk, await talk.desk.store.get(chosen))


@_command("resume", "REF", takes="session")
async def resume(talk: Talk, rest: str) -> None:
    """Go on with another session: by its id, key or title."""
    if not rest:
        await sessions(talk, "")
        return
    await _switch(talk, await talk.desk.store.get(rest))


async def _switch(talk: Talk, session: AsyncSession) -> None:
    if talk.desk.session is not None and talk.desk.session.id == session.id:
        talk.note("this is the session you are in")
        return
    await talk.open_session(session)


@_command("session", anytime=True)
async def session_(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Tell about this session: id, place, size, state."""
    session = await _here(talk)
    info = await session.info()
    kept = [point.name for point in saving.points(info)]
    facts: tuple[tuple[str, str | None], ...] = (
        ("title", info.title),
        ("id", info.id),
        ("key", info.key),
        ("store", str(talk.desk.store.url)),
        ("works in", info.cwd),
        ("scope", info.scope),
        ("holds", f"{count(info.messages, 'message')}, {count(info.turns, 'turn')}"),
        ("branches", str(info.branches) if info.branches > 1 else None),
        ("from", info.parent and f"{info.relation} of {short(info.parent)}"),
        ("forks", str(info.forks) if info.forks else None),
        ("points", ", ".join(kept) or None),
        ("state", info.state),
        ("goal", None if info.goal is None else f"{info.goal.objective} ({info.goal.state})"),
        ("begun", ago(info.created_at)),
        ("active", ago(info.updated_at)),
    )
    _draw_facts(talk, facts)


@_command("title", "[TEXT]")
async def title(talk: Talk, rest: str) -> None:
    """Give this session a title, or show the one it has."""
    if not rest:
        info = await (await _here(talk)).info()
        talk.note(
            f"title: {info.title}" if info.title else "it has no title; /title TEXT gives one"
        )
        return
    info = await (await talk.desk.in_session()).update(title=" ".join(rest.split()))
    talk.note(f"title: {info.title}")


# ----------------------------------------------------------------------------------- going back


@_command("undo", "[N]")
async def undo(talk: Talk, rest: str) -> None:
    """Take back the last turn, or the last N; /redo brings it back."""
    session = await _here(talk)
    before = await session.messages(limit=1)
    if not before:
        raise BadQuery("there is nothing to undo")
    turns = _number(rest, 1)
    head = await session.undo(turns)
    taken = (before[0].seq or 0) - head.seq
    talk.note(f"took back {count(taken, 'message')}; /redo brings them back")
    await _show_end(talk, session, head)


@_command("redo")
async def redo(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Take back the last undo, rewind or drop."""
    session = await _here(talk)
    head = await session.redo()
    await _show_end(talk, session, head)


@_command("rewind", "[NAME|N]", takes="place")
async def rewind(talk: Talk, rest: str) -> None:
    """Go back to a saved point, or to message N (/history tells the numbers)."""
    session = await _here(talk)
    if not rest:
        _list_points(talk, await session.info(), "/rewind NAME goes back to one")
        return
    head = await session.rewind(await saving.place(session, rest))
    talk.note("went back; /redo brings the rest back")
    await _show_end(talk, session, head)


@_command("save", "[NAME]")
async def save(talk: Talk, rest: str) -> None:
    """Name this point, so that /rewind NAME and /fork NAME can go back to it."""
    session = await _here(talk)
    if not rest:
        _list_points(talk, await session.info(), "/save NAME names this one")
        return
    point = await saving.save(session, rest)
    talk.note(f"message {point.seq} is called {point.name!r}: /rewind {point.name}")


@_command("fork", "[NAME|N]", takes="place")
async def fork(talk: Talk, rest: str) -> None:
    """Split off a new session here, or at a saved point or message N, and go on in it."""
    session = await _here(talk)
    made = await fork_at(session, rest or None)
    before = called(await session.info())
    await talk.desk.open(made)
    talk.waiting.clear()
    head = await made.head()
    at = "" if not rest else f" at message {head.seq}"
    talk.note(f"forked{at}; what you say now stays out of the other one (/resume {before})")


async def fork_at(session: AsyncSession, place: str | None) -> AsyncSession:
    """Split off a session at a place."""
    return await session.fork(None if place is None else await saving.place(session, place))


@_command("retry")
async def retry(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Ask the last question again; the answer before is kept out of view."""
    session = await _here(talk)
    newest = await session.messages(limit=200)
    asked = next((m for m in reversed(newest) if recap.is_said(m)), None)
    if asked is None or asked.seq is None:
        raise BadQuery("there is nothing to ask again")
    talk.agent()  # Without a model nothing is moved.
    content = _again(asked)
    await _back_before(session, asked.seq)
    talk.drawing.show_said(asked.text)
    talk.front.show()
    await talk.say(content)


async def _back_before(session: AsyncSession, seq: int) -> None:
    if seq > 1:
        await session.rewind(seq - 1)
    else:
        await session.clear()


def _again(asked: Message) -> Content:
    return asked.text if all(hasattr(part, "text") for part in asked.parts) else asked.parts


@_command("history", "[N]", anytime=True)
async def history(talk: Talk, rest: str) -> None:
    """Show the last messages, or the last N, with their numbers."""
    session = await _here(talk)
    found = await session.messages(limit=_number(rest, _SHOWN))
    drawn = Messages(talk.out, ledger(await session.turns()), Look())
    for message in found:
        drawn.draw(message)
    drawn.end_fold()
    earlier = (found[0].seq or 1) - 1 if found else 0
    if earlier:
        talk.note(f"{count(earlier, 'earlier message')}: /history {len(found) + earlier} shows all")
    elif not found:
        talk.note("nothing was said yet")


@_command("search", "WORDS", takes="words", anytime=True)
async def search(talk: Talk, rest: str) -> None:
    """Find what was said, in all sessions."""
    if not rest:
        raise BadQuery('say what to look for: words, "a phrase", role:user, since:7d')
    store = talk.desk.store
    await store.catch_up_index()
    page = await store.search(rest, limit=_SHOWN)
    for hit in page:
        talk.out.line(*_where(hit))
        talk.out.line("  ", *_marked(hit))
    if not page.items:
        talk.note("nothing found")
        return
    talk.note(f"/resume {short(page.items[0].session_id)} goes to the first")


def _where(hit: Hit) -> list[Span]:
    place = "title" if hit.seq is None else f"#{hit.seq} {hit.role}"
    more = f"  and {count(hit.more, 'more match', 'more matches')}" if hit.more else ""
    return [
        (short(hit.session_id), "bold"),
        (f"  {place}", "cyan"),
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
async def goal(talk: Talk, rest: str) -> None:
    """Set a goal that the agent works towards by itself, tell it, or end it."""
    if not rest:
        info = await (await _here(talk)).info()
        _draw_goal(talk, info.goal)
    elif rest in {"done", "cancel"}:
        await _end_goal(talk, rest)
    else:
        session = await talk.desk.in_session()
        await session.update(goal=Goal(rest, started_at=datetime.now(UTC)))
        talk.note(f"goal: {words(rest)}", "cyan")
        talk.front.show()
        await talk.say(rest)


def _draw_goal(talk: Talk, goal: Goal | None) -> None:
    if goal is None:
        talk.note("there is no goal; /goal TEXT sets one, and the agent works towards it")
        return
    facts = (("goal", goal.objective), ("state", goal.state), ("so far", goal.summary))
    _draw_facts(talk, (*facts, ("recap", goal.recap), ("turns", str(goal.rounds))))


async def _end_goal(talk: Talk, how: str) -> None:
    session = await _here(talk)
    goal = (await session.info()).goal
    if goal is None or goal.state != "active":
        raise BadQuery("there is no goal to end")
    state: Literal["completed", "cancelled"] = "completed" if how == "done" else "cancelled"
    await session.update(
        goal=msgspec.structs.replace(goal, state=state, ended_at=datetime.now(UTC))
    )
    talk.note(f"the goal is {state}")


@_command("compact")
async def compact(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Let a summary stand for the older messages, so that the model is sent less."""
    session = await _here(talk)
    agent = talk.agent()
    talk.note("summarising …")
    talk.front.show()
    made = await agent.summarize(session)
    if made is None:
        talk.note("there is too little to summarise")
        return
    by = "" if made.by == "model" else " (an extract: the model made none)"
    talk.note(f"a summary stands for messages 1 to {made.upto} now{by}; all stay readable")


@_command("window", anytime=True)
async def window(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Show what the model is sent now."""
    session = await _here(talk)
    agent = talk.desk.agent
    made = await (session.window() if agent is None else agent.window(session))
    draw_window(talk.out, made, whole="/history shows all")


@_command("model", "[NAME]", takes="model")
async def model(talk: Talk, rest: str) -> None:
    """Tell which model answers, or let another: openai:NAME, anthropic:NAME, local."""
    if rest:
        await talk.desk.choose_model(rest)
    talk.draw_model()


@_command("usage", anytime=True)
async def usage(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Tell what this session used and cost."""
    found = await (await _here(talk)).usage()
    if not found.usage.total:
        talk.note("nothing was used yet")
        return
    talk.out.table(_COLUMNS, _usage_rows(found))


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
async def export(talk: Talk, rest: str) -> None:
    """Write this session to a file, without what looks like a secret."""
    session = await _here(talk)
    path = _file(rest or f"holdfast-{short(session.id)}.jsonl")
    made = await talk.desk.store.export(path, session.id)
    review = made.review
    left = 0 if review is None else review.replaced + review.left_out
    secrets = f"; {count(left, 'secret')} left out" if left else ""
    talk.note(f"{count(made.messages, 'message')}, {size(made.size)}: {made.path}{secrets}")


def _file(name: str) -> Path:
    return Path(name).expanduser()


@_command("status", anytime=True)
async def status(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Tell how things stand: model, session, what runs and what waits."""
    desk = talk.desk
    info = None if desk.session is None else await desk.session.info()
    queued = [] if desk.session is None else await desk.session.queued()
    answering = None if desk.agent is None else desk.agent.model.name
    facts: tuple[tuple[str, str | None], ...] = (
        ("model", answering or "none: /model chooses one"),
        ("session", "none yet" if info is None else f"{recap.name(info)} {short(info.id)}"),
        ("turns", None if info is None else str(info.turns)),
        ("running", talk.drawing.status if talk.running else "nothing"),
        ("queued", "; ".join(words(item.message.text, 60) for item in queued) or None),
        ("goal", info.goal.objective if info and info.goal else None),
        ("store", str(desk.store.url)),
        ("works in", desk.root),
        ("scope", desk.scope),
        ("run", desk.run_id),
    )
    _draw_facts(talk, facts)


@_command("stop", anytime=True)
async def stop(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Stop the turn that runs; what came so far is kept."""
    if not talk.stop():
        talk.note("nothing runs")


@_command("exit", anytime=True)
async def exit_(talk: Talk, rest: str) -> None:  # noqa: ARG001
    """Leave; what is running is stopped and kept."""
    talk.front.leave()


# ---------------------------------------------------------------------------------------- common


async def _here(talk: Talk) -> AsyncSession:
    if talk.desk.session is None:
        raise NotFound("nothing was said yet in this conversation")
    return talk.desk.session


def _number(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**8):
        raise BadQuery(f"{text!r} is no number of that kind")
    return int(text)


def _draw_facts(talk: Talk, facts: tuple[tuple[str, str | None], ...]) -> None:
    for label, value in facts:
        if value is not None:
            talk.out.fact(f"  {label:<10}", value)


def _list_points(talk: Talk, info: SessionInfo, hint: str) -> None:
    for point in saving.points(info):
        talk.out.line(("  ", ""), (point.name, "bold"), (f"  message {point.seq}", "dim"))
    talk.note(hint if saving.points(info) else "no point is saved yet; /save NAME names this one")


async def _show_end(talk: Talk, session: AsyncSession, head: Head) -> None:
    newest = await session.messages(limit=1)
    if not newest:
        talk.note("the conversation is empty now")
        return
    talk.out.brief(
        (f"  it ends with message {head.seq}: ", "dim"), f"{newest[0].role}: {one_line(newest[0])}"
    )
