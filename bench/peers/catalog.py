"""The stores that are measured: their versions, their drivers, and how durable they are.

What their storage depends on is pinned with them. A version that is raised gets an environment of
its own, and the old one is removed (`tools.environments`).
"""

from __future__ import annotations

from typing import Final

import msgspec

_SQLALCHEMY: Final = "sqlalchemy[asyncio]==2.1.8"
_AIOSQLITE: Final = "aiosqlite==0.22.1"
_WAL: Final = "SQLite (WAL, FULL), a commit a turn"
_JOURNAL: Final = "SQLite (journal, FULL), a commit a message"


class PeerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One store; variants share a driver and its environment.

    Without requirements it is Holdfast, in the environment of this process.
    """

    name: str
    driver: str
    variant: str = "Peer"
    requirements: tuple[str, ...] = ()
    durability: str

    @property
    def syncs(self) -> bool:
        """Whether what it acknowledged survives a power cut."""
        return "FULL" in self.durability


HOLDFAST: Final = PeerEntry(
    name="Holdfast",
    driver="holdfast_store",
    durability=_WAL,
)
_OPENAI: Final = ("openai-agents==0.24.0",)
_ADK: Final = ("google-adk[db]==2.13.0", _SQLALCHEMY, _AIOSQLITE)
PEERS: Final = (
    HOLDFAST,
    PeerEntry(
        name="openai-agents SQLite",
        driver="openai_agents",
        requirements=_OPENAI,
        durability=_WAL,
    ),
    PeerEntry(
        name="openai-agents Advanced",
        driver="openai_agents",
        variant="Advanced",
        requirements=_OPENAI,
        durability=_WAL,
    ),
    PeerEntry(
        name="langgraph",
        driver="langgraph",
        requirements=(
            "langgraph==1.2.22",
            "langgraph-checkpoint-sqlite==3.1.2",
            "langchain-core==1.7.2",
        ),
        durability="SQLite (WAL, FULL), a state with all messages",
    ),
    PeerEntry(
        name="hermes-agent",
        driver="hermes",
        requirements=("hermes-agent==0.19.0",),
        durability="SQLite (WAL, FULL), a commit a message",
    ),
    PeerEntry(
        name="google-adk Sqlite",
        driver="adk",
        requirements=_ADK,
        durability=_JOURNAL,
    ),
    PeerEntry(
        name="google-adk Database",
        driver="adk",
        variant="Database",
        requirements=_ADK,
        durability=_JOURNAL,
    ),
    PeerEntry(
        name="agno",
        driver="agno",
        requirements=("agno[sqlite]==3.1.10", _SQLALCHEMY, "openai==3.51.0"),
        durability="SQLite (WAL, FULL), a commit for a run",
    ),
    PeerEntry(
        name="strands-agents",
        driver="strands",
        requirements=("strands-agents==1.62.0",),
        durability="a file a message, not synced",
    ),
    PeerEntry(
        name="nanobot-ai",
        driver="nanobot",
        requirements=("nanobot-ai==0.3.5",),
        durability="a file a session, rewritten, not synced",
    ),
    PeerEntry(
        name="praisonaiagents",
        driver="praison",
        requirements=("praisonaiagents==1.7.17",),
        durability="a file a session, rewritten, not synced",
    ),
)
