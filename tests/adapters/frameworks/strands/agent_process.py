"""A process with an agent: `charge` ends inside its tool, `resume` continues, `write` appends."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from strands import Agent, tool
from strands.session.repository_session_manager import RepositorySessionManager

import holdfast
from holdfast.adapters.strands import HoldfastSessionRepository
from tests.adapters.frameworks.strands.scripted import ScriptedModel

CALL: dict[str, Any] = {"toolUse": {"toolUseId": "c-1", "name": "charge", "input": {"cents": 5}}}


@tool
def charge(cents: int) -> str:
    """Charge the card.

    Args:
        cents: How much.
    """
    sys.stdout.write(f"charging {cents}\n")
    sys.stdout.flush()
    threading.Event().wait()
    return "charged"


def new_agent(store: holdfast.Store, *replies: list[dict[str, Any]]) -> Agent:
    repository = HoldfastSessionRepository(store)
    return Agent(
        model=ScriptedModel(*replies),
        tools=[charge],
        agent_id="teller",
        session_manager=RepositorySessionManager("till", repository),
        callback_handler=None,
    )


def write(store: holdfast.Store, name: str, count: int) -> None:
    agent = new_agent(store)
    manager = agent._session_manager  # noqa: SLF001 - as the agent's own hooks call it
    for number in range(count):
        manager.append_message({"role": "user", "content": [{"text": f"{name} {number}"}]}, agent)


def main() -> None:
    command, url, *rest = sys.argv[1:]
    with holdfast.open(url, durability="process") as store:
        if command == "charge":
            new_agent(store, [{"text": "One moment."}, CALL])("Charge 5 cents")
        elif command == "resume":
            agent = new_agent(store, [{"text": "I do not know whether it was charged."}])
            agent("Was it charged?")
            json.dump(agent.messages, sys.stdout)
        else:
            write(store, rest[0], int(rest[1]))


if __name__ == "__main__":
    main()
