"""The chat's context: the store, the open session, and the agent.

A session is created with the first message, so that reading creates none. Without a usable model
there is no agent: the chat opens nevertheless, and reports what the model needs.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final, Protocol

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.resolution import Choice
from holdfast.agent.tools.protocol import Approver
from holdfast.agent.tools.worker_thread import in_thread
from holdfast.aio.session import AsyncSession
from holdfast.aio.store import AsyncStore
from holdfast.errors import ModelMissing
from holdfast.values import Relation

_HEAVY: Final = ("anthropic", "openai")  # packages that are slow to import


class Maker(Protocol):
    """Creates agents from the configuration and the command line's options."""

    def choose(self, spec: str | None) -> Choice:
        """Choose a model: `spec`, else by configuration and environment."""

    def root(self, cwd: str | None) -> tuple[str, str | None]:
        """Return the directory a session's tools work in, and a notice for the user."""

    def agent(self, choice: Choice, root: str, approve: Approver) -> AsyncAgent:
        """Create an agent; raise `ModelMissing` with what the model needs."""

    def tidy(self, keep: str) -> str | None:
        """Apply the configured retention to all sessions but `keep`; return a notice."""


class Desk:
    """The open session of a chat, and the agent that answers in it."""

    def __init__(
        self, store: AsyncStore, factory: Maker, *, cwd: str, scope: str | None, run_id: str
    ) -> None:
        self.store = store
        self.cwd = cwd
        self.scope = scope
        self.run_id = run_id
        self.session: AsyncSession | None = None
        self.agent: AsyncAgent | None = None
        self.choice: Choice | None = None
        self.missing: ModelMissing | None = None
        self._maker = factory
        self._root = cwd
        self._before: AsyncSession | None = None
        self._approve: Approver | None = None

    def approved_by(self, approve: Approver) -> None:
        """Set the approver of the agents created from now on."""
        self._approve = approve

    @property
    def root(self) -> str:
        """The directory the tools work in."""
        return self._root

    # -------------------------------------------------------------------------------- the session

    async def open(self, session: AsyncSession) -> str | None:
        """Continue a session; return a notice about the directory its tools work in."""
        info = await session.info()
        root, note = self._maker.root(info.cwd)
        if info.cwd not in {None, root}:
            await session.update(cwd=root)  # Its directory no longer exists.
        self.session, self._before = session, None
        await self._work_in(root)
        return note

    def open_none(self) -> None:
        """Leave the session; the next message creates a new one."""
        self._before, self.session = self.session, None

    async def in_session(self) -> AsyncSession:
        """Return the open session, creating one if there is none."""
        if self.session is None:
            await self._work_in(self.cwd)
            relation: Relation = "continue" if self._before is None else "reset"
            self.session = await self.store.create(
                parent=self._before,
                relation=relation,
                scope=self.scope,
                model=None if self.agent is None else self.agent.model.name,
                cwd=self.cwd,
            )
            self._before = None
        return self.session

    async def continue_in_new(self, parent: AsyncSession) -> AsyncSession:
        """Create and open a session of this run that continues `parent`."""
        made = await self.store.create(
            parent=parent, relation="continue", scope=self.scope, cwd=self.cwd
        )
        await self.open(made)
        return made

    async def latest(self) -> AsyncSession | None:
        """Return the session to continue: the latest of the scope, else of this directory."""
        if self.scope is not None:
            return await self.store.latest(scope=self.scope)
        return await self.store.latest(cwd=self.cwd)

    # ---------------------------------------------------------------------------------- the agent

    async def choose_model(self, spec: str | None) -> None:
        """Use a model from now on: `spec`, else the configured one."""
        await self.use_model(self._maker.choose(spec))

    async def use_model(self, choice: Choice) -> None:
        """Create an agent for a model; raise `ModelMissing` if it cannot be used."""
        assert self._approve is not None  # noqa: S101 - the controller sets it first
        try:
            made = self._maker.agent(choice, self._root, self._approve)
        except ModelMissing as error:
            if self.agent is None:
                self.choice, self.missing = choice, error
            raise
        before, self.agent = self.agent, made
        self.choice, self.missing = choice, None
        if before is not None:
            await before.close(settle=0.0)

    async def _work_in(self, root: str) -> None:
        """Set the tools' directory; this takes a new agent, as tools are bound to theirs."""
        if root != self._root:
            self._root = root
            if self.agent is not None and self.choice is not None:
                await self.use_model(self.choice)

    async def tidy(self) -> str | None:
        """Apply the configured retention to all but the open session; return a notice."""
        keep = "" if self.session is None else self.session.id
        return await asyncio.to_thread(self._maker.tidy, keep)

    async def warm(self) -> None:
        """Import the provider's package while the user reads: it takes a second."""
        runner = "" if self.choice is None else self.choice.spec.partition(":")[0]
        if self.agent is not None and runner in _HEAVY:
            await in_thread(lambda: importlib.import_module(runner))

    async def close(self, *, settle: float) -> None:
        """Close the agent; its background tasks get `settle` seconds to finish."""
        if self.agent is not None:
            await self.agent.close(settle=settle)
