"""The chat's context: the store, the open session, and the agent.

A session is created with the first message, so that reading creates none. Without a usable model
there is no agent: the chat opens nevertheless, and reports what the model needs.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final, Protocol

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.model_choice import ModelChoice
from holdfast.agent.tools.protocol import Approver
from holdfast.agent.tools.worker_thread import in_thread
from holdfast.aio.session import AsyncSession
from holdfast.aio.store import AsyncStore
from holdfast.cli.known_stores import StoreTrust
from holdfast.errors import ModelMissing
from holdfast.values import Page, Relation, SessionInfo

_SLOW_IMPORTS: Final = ("anthropic", "openai")  # packages that are slow to import


class AgentFactory(Protocol):
    """Creates agents from the configuration and the command line's options."""

    def choose(self, spec: str | None) -> ModelChoice:
        """Choose a model: `spec`, else by configuration and environment."""

    def agent(self, choice: ModelChoice, root: str, approve: Approver) -> AsyncAgent:
        """Create an agent; raise `ModelMissing` with what the model needs."""

    def tidy(self, keep: str) -> str | None:
        """Apply the configured retention to all sessions but `keep`; return a notice."""


class ChatContext:
    """The open session of a chat, and the agent that answers in it."""

    def __init__(
        self,
        store: AsyncStore,
        factory: AgentFactory,
        trust: StoreTrust,
        *,
        cwd: str,
        scope: str | None,
        run_id: str,
    ) -> None:
        self.store = store
        self.trust = trust
        self.cwd = cwd
        self.scope = scope
        self.run_id = run_id
        self.session: AsyncSession | None = None
        self.agent: AsyncAgent | None = None
        self.choice: ModelChoice | None = None
        self.missing_model: ModelMissing | None = None
        self._factory = factory
        self._root = cwd
        self._previous: AsyncSession | None = None
        self._approve: Approver | None = None

    def set_approver(self, approve: Approver) -> None:
        """Set the approver of the agents created from now on."""
        self._approve = approve

    @property
    def root(self) -> str:
        """The directory the tools work in."""
        return self._root

    # -------------------------------------------------------------------------------- the session

    async def open(self, session: AsyncSession, root: str) -> None:
        """Continue a session with tools that work in `root`."""
        self.session, self._previous = session, None
        await self._set_root(root)

    def leave_session(self) -> None:
        """Leave the session; the next message creates a new one."""
        self._previous, self.session = self.session, None

    async def ensure_session(self) -> AsyncSession:
        """Return the open session, creating one if there is none."""
        if self.session is None:
            await self._set_root(self.cwd)
            relation: Relation = "continue" if self._previous is None else "reset"
            self.session = await self.store.create(
                parent=self._previous,
                relation=relation,
                scope=self.scope,
                model=None if self.agent is None else self.agent.model.name,
                cwd=self.cwd,
            )
            self._previous = None
        return self.session

    async def continue_in_new(self, parent: AsyncSession) -> AsyncSession:
        """Create and open a session of this run that continues `parent`."""
        made = await self.store.create(
            parent=parent, relation="continue", scope=self.scope, cwd=self.cwd
        )
        await self.open(made, self.cwd)
        return made

    async def latest(self) -> AsyncSession | None:
        """Return the session to continue: the latest of the scope, else of this directory."""
        if self.scope is not None:
            return await self.store.latest(scope=self.scope)
        return await self.store.latest(cwd=self.cwd)

    async def newest_sessions(self, limit: int) -> Page[SessionInfo]:
        """Return the newest sessions of the scope, else of this directory."""
        if self.scope is not None:
            return await self.store.sessions(scope=self.scope, limit=limit)
        return await self.store.sessions(cwd=self.cwd, limit=limit)

    # ---------------------------------------------------------------------------------- the agent

    async def choose_model(self, spec: str | None) -> None:
        """Use a model from now on: `spec`, else the configured one."""
        await self.use_model(self._factory.choose(spec))

    async def use_model(self, choice: ModelChoice) -> None:
        """Create an agent for a model; raise `ModelMissing` if it cannot be used."""
        assert self._approve is not None  # noqa: S101 - the controller sets it first
        try:
            made = self._factory.agent(choice, self._root, self._approve)
        except ModelMissing as error:
            if self.agent is None:
                self.choice, self.missing_model = choice, error
            raise
        before, self.agent = self.agent, made
        self.choice, self.missing_model = choice, None
        if before is not None:
            await before.close(settle=0.0)

    async def _set_root(self, root: str) -> None:
        """Set the tools' directory; this takes a new agent, as tools are bound to theirs."""
        if root != self._root:
            self._root = root
            if self.agent is not None and self.choice is not None:
                await self.use_model(self.choice)

    async def apply_retention(self) -> str | None:
        """Apply the configured retention to all but the open session; return a notice."""
        keep = "" if self.session is None else self.session.id
        return await asyncio.to_thread(self._factory.tidy, keep)

    async def preload_provider(self) -> None:
        """Import the provider's package while the user reads: it takes a second."""
        runner = "" if self.choice is None else self.choice.spec.partition(":")[0]
        if self.agent is not None and runner in _SLOW_IMPORTS:
            await in_thread(lambda: importlib.import_module(runner))

    async def close(self, *, settle: float) -> None:
        """Close the agent; its background tasks get `settle` seconds to finish."""
        if self.agent is not None:
            await self.agent.close(settle=settle)
