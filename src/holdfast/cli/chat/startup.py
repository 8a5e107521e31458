"""Startup and end of a chat: from the configuration to the context, and the resume hint.

After everything is closed, the chat prints the command that continues it.
"""

from __future__ import annotations

import shlex
from typing import Final

import holdfast
from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.resolution import Choice
from holdfast.agent.tools.protocol import Approver
from holdfast.aio.store import AsyncStore
from holdfast.cli import agent_factory
from holdfast.cli.agent_factory import Wishes
from holdfast.cli.chat import resume_banner
from holdfast.cli.chat.chat_context import Desk
from holdfast.cli.chat.controller import Front, Wanted
from holdfast.cli.output.labels import called
from holdfast.cli.output.screen import screen
from holdfast.cli.signals import Signals
from holdfast.config.loader import Config
from holdfast.errors import HoldfastError

_A_MOMENT: Final = 1.5  # seconds


class ConfiguredMaker:
    """Creates agents from the configuration and the command line's options."""

    def __init__(self, opened: holdfast.Store, config: Config, options: Wishes) -> None:
        self._opened = opened
        self._config = config
        self._wishes = options

    def choose(self, spec: str | None) -> Choice:
        """Choose a model: `spec`, else by configuration and environment."""
        return agent_factory.choose(self._config, spec)

    def root(self, cwd: str | None) -> tuple[str, str | None]:
        """Return the directory a session's tools work in, and a notice for the user."""
        return agent_factory.workplace(cwd)

    def agent(self, choice: Choice, root: str, approve: Approver) -> AsyncAgent:
        """Create an agent; raise `ModelMissing` with what the model needs."""
        model = agent_factory.build(self._config, choice)
        arguments = agent_factory.arguments(
            self._config, self._wishes, self._opened, root, approve, model=model
        )
        return AsyncAgent(model, **arguments)

    def tidy(self, keep: str) -> str | None:
        """Apply the configured retention to all sessions but `keep`; return a notice."""
        return agent_factory.tidied(self._opened, self._config, keep=keep)


class Ending:
    """Prints how to continue the chat, after it was closed."""

    def __init__(self, store: str | None) -> None:
        """`store` is the value of --store."""
        self._store = store
        self.session_id: str | None = None

    def tell(self, opened: holdfast.Store) -> None:
        """Print the command that continues the session, unless the session is empty."""
        if self.session_id is None:
            return
        try:
            info = opened.get(self.session_id).info()
        except HoldfastError:
            return
        if info.messages or info.goal is not None:
            words = ["holdfast", "chat", "--resume", called(info)]
            words += [] if self._store is None else ["--store", shlex.quote(self._store)]
            out = screen()
            out.line()
            out.line(*resume_banner.leaving(info, " ".join(words)))
            out.flush()


async def start(
    context: Desk, view: Front, start_options: Wanted, signals: Signals, resume_hint: Ending
) -> int:
    """Run the chat, then close its agent; return the exit code."""
    try:
        return await view.run(start_options, signals)
    finally:
        resume_hint.session_id = None if context.session is None else context.session.id
        # A title may be in the making; after a signal nothing waits for it.
        await context.close(settle=_A_MOMENT if signals.came is None else 0.0)


def desk_for(opened: holdfast.Store, config: Config, options: Wishes, run_id: str) -> Desk:
    """Create the context of a chat in the current directory."""
    factory = ConfiguredMaker(opened, config, options)
    here, _ = factory.root(None)
    scope = config.settings.session.scope
    return Desk(AsyncStore(opened), factory, cwd=here, scope=scope, run_id=run_id)
