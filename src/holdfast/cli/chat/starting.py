"""Putting a chat together: the configuration, the store, who answers; and the last line.

What is said last, when all is closed, is the command that comes back here.
"""

from __future__ import annotations

import shlex
from typing import Final

import holdfast
from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.choosing import Choice
from holdfast.agent.tools.base import Approver
from holdfast.aio.store import AsyncStore
from holdfast.cli import agenting, signals
from holdfast.cli.agenting import Wishes
from holdfast.cli.chat import recap
from holdfast.cli.chat.desk import Desk
from holdfast.cli.chat.talking import Front, Wanted
from holdfast.cli.naming import called
from holdfast.cli.screen import screen
from holdfast.config.loading import Config
from holdfast.errors import HoldfastError

_A_MOMENT: Final = 1.5  # seconds, for a title that is being made


class ConfiguredMaker:
    """Makes agents as the configuration and the options say."""

    def __init__(self, opened: holdfast.Store, config: Config, wishes: Wishes) -> None:
        """Make them for sessions of this store."""
        self._opened = opened
        self._config = config
        self._wishes = wishes

    def choose(self, spec: str | None) -> Choice:
        """Choose a model."""
        return agenting.choose(self._config, spec)

    def root(self, cwd: str | None) -> tuple[str, str | None]:
        """Return where the tools of a session work."""
        return agenting.workplace(cwd)

    def agent(self, choice: Choice, root: str, approve: Approver) -> AsyncAgent:
        """Put an agent together."""
        model = agenting.build(self._config, choice)
        given = agenting.arguments(
            self._config, self._wishes, self._opened, root, approve, model=model
        )
        return AsyncAgent(model, **given)

    def tidy(self, keep: str) -> str | None:
        """Let old sessions go, if so configured."""
        return agenting.tidied(self._opened, self._config, keep=keep)


class Ending:
    """What is said when the chat is over."""

    def __init__(self, store: str | None) -> None:
        """Remember how the store was named."""
        self._store = store
        self.session_id: str | None = None

    def tell(self, opened: holdfast.Store) -> None:
        """Print the command that resumes, if there is something to come back to."""
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
            out.line(*recap.leaving(info, " ".join(words)))
            out.flush()


async def start(
    desk: Desk, front: Front, wanted: Wanted, told: signals.Signals, ending: Ending
) -> int:
    """Talk, then let go of everything; remember where to come back to. Gives the exit code."""
    try:
        return await front.run(wanted, told)
    finally:
        ending.session_id = None if desk.session is None else desk.session.id
        await desk.close(settle=_A_MOMENT if told.came is None else 0.0)


def desk_for(opened: holdfast.Store, config: Config, wishes: Wishes, run_id: str) -> Desk:
    """Make the desk of a chat that begins in the current directory."""
    maker = ConfiguredMaker(opened, config, wishes)
    here, _ = maker.root(None)
    scope = config.settings.session.scope
    return Desk(AsyncStore(opened), maker, cwd=here, scope=scope, run_id=run_id)
