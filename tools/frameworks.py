"""The frameworks that the adapters are tested with: `python -m tools.frameworks` installs them.

Each has an environment of its own (`tools.environments`) with pinned versions, and what the library
needs; the library itself is imported from the tree. Its tests are in `tests/adapters/frameworks`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from tools.environments import NotInstalled, environments_directory, interpreter

_COMMON: Final = (
    "apsw==3.54.1.0",
    "msgspec==0.22.0",
    "platformdirs==4.14.5",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
)


class Framework(msgspec.Struct, frozen=True):
    """A framework: the folder of its tests, and its packages."""

    name: str
    packages: tuple[str, ...]

    def interpreter(self) -> Path:
        """Return the interpreter that has it, installing it if needed; raise `NotInstalled`."""
        return interpreter(self.name, (*_COMMON, *self.packages), environments_directory())


FRAMEWORKS: Final = (
    Framework(
        "openai_agents",
        (
            "openai-agents==0.24.0",
            "aiosqlite==0.22.1",  # these three are for its own tests
            "httpx==0.28.1",
            "sqlalchemy[asyncio]==2.1.8",
        ),
    ),
    Framework(
        "langgraph",
        (
            "langgraph==1.2.22",
            "langgraph-checkpoint-sqlite==3.1.2",
            "langgraph-checkpoint-conformance==0.0.2",
        ),
    ),
    Framework("langchain", ("langchain-core==1.7.2",)),
    Framework("claude_agent_sdk", ("claude-agent-sdk==0.2.184", "trio==0.31.0")),
    Framework("pydantic_ai", ("pydantic-ai-slim==2.66.0",)),
    Framework(
        "google_adk", ("google-adk[db]==2.13.0", "sqlalchemy[asyncio]==2.1.8", "aiosqlite==0.22.1")
    ),
    Framework("strands", ("strands-agents==1.62.0",)),
    Framework("nanobot", ("nanobot-ai==0.3.5",)),
    Framework("hermes", ("hermes-agent==0.19.0",)),
    Framework(
        "praisonai",
        ("praisonaiagents==1.7.17", "praisonai==4.7.19", "praisonai-bot==0.1.16"),
    ),
)


def main() -> None:
    """Install what is missing, two at a time; what cannot be installed is named."""
    with ThreadPoolExecutor(2) as pool:
        for framework, problem in zip(FRAMEWORKS, pool.map(_install, FRAMEWORKS), strict=True):
            if problem is not None:
                print(f"{framework.name} is not here: {problem}", file=sys.stderr)


def _install(framework: Framework) -> NotInstalled | None:
    try:
        framework.interpreter()
    except NotInstalled as error:
        return error
    return None


if __name__ == "__main__":
    main()
