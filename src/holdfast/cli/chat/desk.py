"""What a chat works on: the store, the session that is open, and the agent.

A session begins when something is said in it, so that looking around leaves nothing behind. Where
no model can be used there is no agent: the chat opens all the same, and says what the model needs.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final, Protocol

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.choosing import Choice
from holdfast.agent.tools.base import Approver
from holdfast.agent.tools.threads import in_thread
from holdfast.aio.session import AsyncSession
from holdfast.aio.store import AsyncStore
from holdfast.errors import ModelMissing
from holdfast.records import Relation

_HEAVY: Final = ("anthropic", "openai")  # packages, by who runs the model


class Maker(Protocol):
    """Makes agents: knows the configuration, and what was asked for on the command line."""

    def choose(self, spec: str | None) -> Choice:
        """Choose a model: this one, or what the configuration and the environment say."""

    def root(self, cwd: str | None) -> tuple[str, str | None]:
        """Return where the tools of a session work, and what the user should know of that."""

    def agent(self, choice: Choice, root: str, approve: Approver) -> AsyncAgent:
        """Put an agent together; `ModelMissing` says what the model needs."""

    def tidy(self, keep: str) -> str | None:
        """Let old sessions go, if so configured, but for this one; say so."""


class Desk:
    """The session, and who answers in it."""

    def __init__(
        self, store: AsyncStore, maker: Maker, *, cwd: str, scope: str | None, run_id: str
    ) -> None:
        """Begin with no session and no agent."""
        self.store = store
        self.cwd = cwd
        self.scope = scope
        self.run_id = run_id
        self.session: AsyncSession | None = None
        self.agent: AsyncAgent | None = None
        self.choice: Choice | None = None
        self.missing: ModelMissing | None = None
        self._maker = maker
        self._root = cwd
        self._before: AsyncSession | None = None
        self._approve: Approver | None = None

    def approved_by(self, approve: Approver) -> None:
        """Let the user be asked in this way."""
        self._approve = approve

    @property
    def root(self) -> str:
        """Where the tools work."""
        return self._root

    # -------------------------------------------------------------------------------- the session

    async def open(self, session: AsyncSession) -> str | None:
        """Go on in a session; give what the user should know of the place its tools work in."""
        info = await session.info()
        root, note = self._maker.root(info.cwd)
        if info.cwd not in {None, root}:
            await session.update(cwd=root)  # It is not there any more.
        self.session, self._before = session, None
        await self._work_in(root)
        return note

    def open_none(self) -> None:
        """Begin anew: the next thing that is said begins a session."""
        self._before, self.session = self.session, None

    async def in_session(self) -> AsyncSession:
        """Return the session, beginning one if there is none."""
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
        """Begin a session of this run's own that goes on where another stands."""
        made = await self.store.create(
            parent=parent, relation="continue", scope=self.scope, cwd=self.cwd
        )
        await self.open(made)
        return made

    async def latest(self) -> AsyncSession | None:
        """Find the session to continue: the latest one of the scope, or of this directory."""
        if self.scope is not None:
            return await self.store.latest(scope=self.scope)
        return await self.store.latest(cwd=self.cwd)

    # ---------------------------------------------------------------------------------- the agent

    async def choose_model(self, spec: str | None) -> None:
        """Let this model answer from now on, or what the configuration says."""
        await self.use_model(self._maker.choose(spec))

    async def use_model(self, choice: Choice) -> None:
        """Put an agent together; if that cannot be, remember why."""
        assert self._approve is not None  # noqa: S101 - a front gives it before all else
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
        """Let the tools work in this directory: they never leave the one they were made for."""
        if root != self._root:
            self._root = root
            if self.agent is not None and self.choice is not None:
                await self.use_model(self.choice)

    async def tidy(self) -> str | None:
        """Let old sessions go, if so configured, but for the one that is open; say so."""
        keep = "" if self.session is None else self.session.id
        return await asyncio.to_thread(self._maker.tidy, keep)

    async def warm(self) -> None:
        """Load what the model needs while the user reads: it takes a second."""
        runner = "" if self.choice is None else self.choice.spec.partition(":")[0]
        if self.agent is not None and runner in _HEAVY:
            await in_thread(lambda: importlib.import_module(runner))

    async def close(self, *, settle: float) -> None:
        """Let go of the agent; what it does beside the conversation is given so many seconds."""
        if self.agent is not None:
            await self.agent.close(settle=settle)
