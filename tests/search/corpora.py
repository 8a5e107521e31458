"""Stores with random histories: forks, undone turns, replaced histories, a trash, other tenants.

What a search must find is worked out from what the API shows of each session, message by message,
with the rule of `search.match`: no index, no branches, no shortcuts.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from holdfast import Message, Session, Store, Text, Thinking, ToolCall, errors
from holdfast.search.document import document
from holdfast.search.match import fits_title, matches
from holdfast.search.query import Filters, Query, parse
from holdfast.values import Part, Relation, SessionInfo

NOW = datetime(2026, 3, 1, tzinfo=UTC)
_WORDS = (
    "parcel", "courier", "letter", "getUserName", "C++", "café", "包裹", "명령", "50%", "user@host",
    "gateway/run.py", "it's", "TODO", "red", "green", "blue", "==", "->", "🎉", "sha256sum",
    "straße",
)  # fmt: skip
_SCOPES = (None, "mail", "shop")
_ROLES = ("user", "assistant", "tool", "system")

QUERIES = (
    "parcel", "courier letter", '"red green"', "-parcel", "red -green", "user", "userName", "cafe",
    "包", "包裹 red", "gateway/run.py", "gate*", "50%", "c++", "==", "red ==", "it's",
    "run.py -red", "", "role:user red", "role:tool", "scope:mail blue", "agent:bot letter",
    "title:red", "-title:red", "title:red parcel", "since:2026-01-15", "until:2026-01-15 red",
    "since:2026-01-10 until:2026-02 -blue", "straße", "🎉", "->", "courier*", "todo green blue red",
    "thought", "thought red",
)  # fmt: skip


def text(rnd: random.Random) -> str:
    return " ".join(rnd.choices(_WORDS, k=rnd.randint(1, 6)))


def message(rnd: random.Random) -> Message:
    at = NOW - timedelta(minutes=rnd.randint(0, 100_000))
    role = rnd.choice(_ROLES)
    if role == "tool":
        return Message.tool("call", text(rnd), created_at=at)
    if role == "assistant":
        parts: list[Part] = [Text(text(rnd))]
        if rnd.random() < 0.3:
            parts.append(Thinking(f"thought {text(rnd)}"))
        calls = [ToolCall("call", "search", {"for": text(rnd)})] if rnd.random() < 0.3 else []
        return Message.assistant(parts, tool_calls=calls, created_at=at)
    made = Message.user if role == "user" else Message.system
    return made(text(rnd), created_at=at)


def live(store: Store, rnd: random.Random, steps: int) -> Iterator[str]:
    """Run random operations on sessions; yield a description of each."""
    known: list[Session] = []
    for _ in range(steps):
        choice = rnd.random()
        if not known or choice < 0.12:
            known.append(_made(store, rnd, known))
            yield f"session {known[-1].id}"
        else:
            yield _change(store, rnd.choice(known), rnd, choice, known)


def _made(store: Store, rnd: random.Random, known: list[Session]) -> Session:
    parent = rnd.choice(known) if known and rnd.random() < 0.5 else None
    relation: Relation = "continue"
    if parent is not None:
        relation = rnd.choice(("continue", "fork", "reset", "delegate"))
    return store.create(
        scope=rnd.choice(_SCOPES),
        agent=rnd.choice((None, "bot")),
        title=rnd.choice((None, text(rnd))),
        parent=parent,
        relation=relation,
    )


def _change(
    store: Store, session: Session, rnd: random.Random, choice: float, known: list[Session]
) -> str:
    try:
        if choice < 0.62:
            session.append(*(message(rnd) for _ in range(rnd.randint(1, 4))))
            return f"append {session.id}"
        if choice < 0.72:
            session.undo(rnd.randint(1, 2))
            return f"undo {session.id}"
        if choice < 0.78:
            here = session.messages()
            kept = [item for item in here if rnd.random() < 0.7]
            session.replace([*kept, message(rnd)])
            return f"replace {session.id}"
        if choice < 0.84:
            known.append(session.fork(rnd.randint(1, max(1, session.head().seq))))
            return f"fork {session.id}"
        if choice < 0.88:
            store.trash(session.id)
            return f"trash {session.id}"
        if choice < 0.92:
            store.restore(session.id)
            return f"restore {session.id}"
        if choice < 0.96:
            session.update(title=rnd.choice((None, text(rnd))))
            return f"rename {session.id}"
        known.remove(session)
        store.purge(session.id, forks=rnd.choice(("keep", "erase")))
        return f"purge {session.id}"
    except (errors.Invalid, errors.NotFound, errors.Conflict) as error:
        return f"nothing: {error}"


# ------------------------------------------------------------------------------------ the truth


class Truth:
    """The contents of a store, read once; valid until the next write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._infos = store.sessions(limit=10_000).items
        self._shown: dict[tuple[str, bool], dict[str, Message]] = {}
        self._lineages: dict[str, str] = {}

    def expected(
        self, text: str, *, thinking: bool = False, all_branches: bool = False
    ) -> dict[str, set[str]]:
        """The ids of the messages that a search must find, by session outside the trash."""
        query = parse(text, now=NOW)
        return {
            info.id: {
                id
                for id, item in self._shown_by(info.id, all_branches=all_branches).items()
                if fits(query, info, item, thinking=thinking)
            }
            for info in self._infos
        }

    def _shown_by(self, id: str, *, all_branches: bool) -> dict[str, Message]:
        if (id, all_branches) not in self._shown:
            session = self._store.get(id)
            self._shown[id, all_branches] = shown(session, all_branches=all_branches)
        return self._shown[id, all_branches]

    def titled(self, text: str) -> set[str]:
        """The sessions whose titles have all wanted words."""
        query = parse(text, now=NOW)
        filters = query.filters
        if not query.wanted or filters.role or filters.since or filters.until:
            return set()
        as_title = Query(filters=Filters(title=query.terms))
        return {
            info.id
            for info in self._infos
            if fits_title(as_title, info.title)
            and fits_title(query, info.title)
            and filters.scope in (None, info.scope)
            and filters.agent in (None, info.agent)
        }

    def lineage(self, session_id: str) -> str:
        """Return the oldest known session with which a session shares history."""
        if session_id not in self._lineages:
            self._lineages[session_id] = lineage(self._store, session_id)
        return self._lineages[session_id]


def shown(session: Session, *, all_branches: bool) -> dict[str, Message]:
    """Return all messages that a session shows, by id."""
    numbers = [branch.number for branch in session.branches()] if all_branches else [None]
    found = {item.id: item for number in numbers for item in session.messages(branch=number)}
    return {id: item for id, item in found.items() if item.status not in {"erased", "damaged"}}


def fits(query: Query, info: SessionInfo, item: Message, *, thinking: bool) -> bool:
    filters = query.filters
    at = item.created_at
    assert at is not None
    return (
        matches(query, document(item), thinking=thinking) is not None
        and filters.role in (None, item.role)
        and filters.scope in (None, info.scope)
        and filters.agent in (None, info.agent)
        and (filters.since is None or at >= filters.since)
        and (filters.until is None or at < filters.until)
        and fits_title(query, info.title)
    )


def lineage(store: Store, session_id: str) -> str:
    """Return the oldest known session with which a session shares history."""
    links = store.get(session_id).lineage()
    for link in reversed(links):
        if link.created_at is None:  # only its name is left
            break
        if link.relation not in {"fork", "continue"} or link.parent is None:
            return link.session_id
    # The next one above was purged; perhaps its history came from one that was not.
    starts = [start for link in links if (start := _start(store, link.session_id)) is not None]
    return lineage(store, starts[0]) if starts else links[0].session_id


def _start(store: Store, session_id: str) -> str | None:
    try:
        parent = store.get(session_id).branches()[0].parent_id
        return None if parent is None else store.get(parent).id
    except errors.NotFound:
        return None
