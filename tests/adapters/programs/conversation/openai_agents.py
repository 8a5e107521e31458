"""`-m … STORE KEY`: an agent that answers once, and then waits inside its second tool."""

from __future__ import annotations

import asyncio
import sys

from agents import Runner, function_tool, set_tracing_disabled

import holdfast
from holdfast import Store
from holdfast.adapters.openai_agents import HoldfastSession
from tests.adapters.frameworks.openai_agents.scripted import agent, call, reasoning, reply


@function_tool
def find(parcel: int) -> str:
    """Find a parcel."""
    return f"Parcel {parcel} is in Bern."


@function_tool
def ship(parcel: int) -> str:
    """Ship a parcel."""
    sys.stdout.write(f"shipping parcel {parcel}\n")
    sys.stdout.flush()
    return sys.stdin.readline()


async def main(store: Store, key: str) -> None:
    set_tracing_disabled(True)
    session = HoldfastSession(key, store)
    parcels = agent(
        [reasoning("I have to look."), call("find", '{"parcel": 7}')],
        [reply("It is in Bern.")],
        [call("find", '{"parcel": 7}')],
        [call("ship", '{"parcel": 7}')],
        tools=[find, ship],
    )
    await Runner.run(parcels, "Where is parcel 7?", session=session)
    await Runner.run(parcels, "Ship it.", session=session)


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as _store:
        asyncio.run(main(_store, sys.argv[2]))
