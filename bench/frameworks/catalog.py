"""The frameworks whose adapters are measured, and what is measured with each."""

from __future__ import annotations

from typing import Final

import msgspec

from bench.peers.turns import MESSAGES_PER_TURN
from tools.frameworks import FRAMEWORKS, Framework


class FrameworkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A framework: its own store and how durable it is as shipped, and our adapter.

    `histories` are numbers of messages, of which a row shows that of `unit`, so many at once.
    `newest` says what is read of the end of a history in a running process, if its interface can.
    """

    name: str
    title: str
    own: str
    adapter: str
    durability: str
    histories: tuple[int, ...] = (100, 10_000, 100_000)
    append: str = "append a turn"
    resume: str = "resume, new process"
    newest: str = ""
    newest_at_most: float | None = None
    unit: str = "messages"
    messages_of_unit: int = 1

    @property
    def framework(self) -> Framework:
        """The packages of its environment."""
        return next(one for one in FRAMEWORKS if one.name == self.name)

    @property
    def version(self) -> str:
        """The version of the framework."""
        return self.framework.packages[0].partition("==")[2]

    def label(self, what: str, messages: int) -> str:
        """Return what a row is about."""
        return f"{self.title}: {what}, {messages // self.messages_of_unit:,} {self.unit}"


ENTRIES: Final = (
    FrameworkEntry(
        name="openai_agents",
        title="OpenAI Agents",
        own="SQLiteSession",
        adapter="HoldfastSession",
        durability="SQLite (WAL, FULL), a commit a turn",
        newest="newest 50",
    ),
    FrameworkEntry(
        name="langgraph",
        title="LangGraph",
        own="SqliteSaver",
        adapter="HoldfastSaver",
        durability="SQLite (WAL, FULL), a commit a step",
        histories=tuple(turns * MESSAGES_PER_TURN for turns in (10, 200, 2_000)),
        append="put a step",
        newest="newest checkpoint",
        newest_at_most=2.0,
        unit="turns",
        messages_of_unit=MESSAGES_PER_TURN,
    ),
    FrameworkEntry(
        name="google_adk",
        title="Google ADK",
        own="SqliteSessionService",
        adapter="HoldfastSessionService",
        durability="SQLite (journal, FULL), a commit an event",
        newest="newest 50",
    ),
    FrameworkEntry(
        name="strands",
        title="Strands",
        own="FileSessionManager",
        adapter="HoldfastSessionRepository",
        durability="a file a message, not synced",
    ),
)
