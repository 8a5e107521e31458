"""A process that reads a session once, and then appends to it: `writer.py STORE NAME COUNT`."""

from __future__ import annotations

import asyncio
import sys

from google.adk.events import EventActions

import holdfast
from holdfast.adapters.google_adk import HoldfastSessionService
from tests.adapters.frameworks.google_adk.events import noted, said


async def _write(path: str, name: str, count: int) -> None:
    with holdfast.open(path, durability="process") as store:
        service = HoldfastSessionService(store)
        session = await service.get_session(app_name="desk", user_id="ada", session_id="one")
        assert session is not None
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for number in range(count):
            own = f"{name}-{number}"
            changes = EventActions(state_delta={f"app:{own}": 1, f"user:{own}": 2, own: 3})
            make = noted if number % 5 == 4 else lambda **fields: said("hello", **fields)
            event = make(id=own, actions=changes)
            await service.append_event(session, event)
            await service.append_event(session, event)  # A client that had no answer tries again.


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
