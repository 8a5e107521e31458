"""PraisonAI: its session store, its bots' sessions and a managed agent, over one store.

`DefaultSessionStore` and `DbSessionAdapter` are what an agent or a manager takes as its session
store; `BotSessionManager` and `LocalManagedAgent` run an agent, each run in a turn.
"""

from holdfast.errors import install_command

try:
    import praisonaiagents  # noqa: F401 - each module here needs it
except ImportError as error:
    raise ImportError(
        f"praisonaiagents is not installed: {install_command('praisonai')}", name=error.name
    ) from error

from holdfast.adapters.praisonai.bot_session_manager import BotRunTimeout, BotSessionManager
from holdfast.adapters.praisonai.db_session_adapter import DbSessionAdapter
from holdfast.adapters.praisonai.local_managed_agent import LocalManagedAgent
from holdfast.adapters.praisonai.session_store import DefaultSessionStore

__all__ = [
    "BotRunTimeout",
    "BotSessionManager",
    "DbSessionAdapter",
    "DefaultSessionStore",
    "LocalManagedAgent",
]
