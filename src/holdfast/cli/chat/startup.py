"""Startup and end of a chat: from the configuration to the context, and the resume hint.

After everything is closed, the chat prints the command that continues it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import holdfast
from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.model_choice import ModelChoice
from holdfast.agent.tools.protocol import Approver
from holdfast.aio.store import AsyncStore
from holdfast.cli import agent_factory
from holdfast.cli.agent_factory import AgentOptions
from holdfast.cli.chat import resume_banner
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.controller import StartOptions, View
from holdfast.cli.known_stores import StoreTrust
from holdfast.cli.output.labels import short_name
from holdfast.cli.output.screen import screen
from holdfast.cli.signals import SignalHandler
from holdfast.config.loader import Config
from holdfast.errors import HoldfastError

_SETTLE_TIMEOUT_S: Final = 1.5  # seconds


class ConfiguredAgentFactory:
    """Creates agents from the configuration and the command line's options."""

    def __init__(self, opened: holdfast.Store, config: Config, options: AgentOptions) -> None:
        self._opened = opened
        self._config = config
        self._options = options

    def choose(self, spec: str | None) -> ModelChoice:
        """Choose a model: `spec`, else by configuration and environment."""
        return agent_factory.choose_model(self._config, spec)

    def agent(self, choice: ModelChoice, root: str, approve: Approver) -> AsyncAgent:
        """Create an agent; raise `ModelMissing` with what the model needs."""
        model = agent_factory.build_model(self._config, choice)
        arguments = agent_factory.agent_arguments(
            self._config, self._options, self._opened, root, approve, model=model
        )
        return AsyncAgent(model, **arguments)

    def tidy(self, keep: str) -> str | None:
        """Apply the configured retention to all sessions but `keep`; return a notice."""
        return agent_factory.apply_retention(self._opened, self._config, keep=keep)


class ResumeHint:
    """Prints how to continue the chat, after it was closed."""

    def __init__(self, store: str | None) -> None:
        """`store` is the value of --store."""
        self._store = store
        self.session_id: str | None = None

    def print(self, opened: holdfast.Store) -> None:
        """Print the command that continues the session, unless the session is empty."""
        if self.session_id is None:
            return
        try:
            info = opened.get(self.session_id).info()
        except HoldfastError:
            return
        if info.messages or info.goal is not None:
            words = ["holdfast", "chat", "--resume", short_name(info)]
            words += [] if self._store is None else ["--store", shlex.quote(self._store)]
            out = screen()
            out.line()
            out.line(*resume_banner.resume_hint(info, " ".join(words)))
            out.flush()


async def run_chat(
    context: ChatContext,
    view: View,
    start_options: StartOptions,
    signals: SignalHandler,
    resume_hint: ResumeHint,
) -> int:
    """Run the chat, then close its agent; return the exit code."""
    try:
        return await view.run(start_options, signals)
    finally:
        resume_hint.session_id = None if context.session is None else context.session.id
        # A title may be in the making; after a signal nothing waits for it.
        await context.close(settle=_SETTLE_TIMEOUT_S if signals.received is None else 0.0)


def make_context(
    opened: holdfast.Store, config: Config, options: AgentOptions, run_id: str
) -> ChatContext:
    """Create the context of a chat in the current directory."""
    factory = ConfiguredAgentFactory(opened, config, options)
    session = config.settings.session
    return ChatContext(
        AsyncStore(opened),
        factory,
        StoreTrust(opened, session.store),
        cwd=str(Path.cwd()),
        scope=session.scope,
        run_id=run_id,
    )
