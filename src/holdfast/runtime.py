"""What a store shares with its sessions and turns."""

from __future__ import annotations

import logging
from datetime import datetime

from holdfast.backends.base import Backend
from holdfast.clock import Clock, to_datetime
from holdfast.keeper import Keeper
from holdfast.records import Damage

_log = logging.getLogger("holdfast")
_MOST_DAMAGE = 1000


class Runtime:
    """The backend, the clock, the background, and what was found damaged."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        """Share these."""
        self.backend = backend
        self.clock = clock
        self.keeper = Keeper()
        self.damage: list[Damage] = []

    def now(self) -> datetime:
        """Tell the time."""
        return to_datetime(self.clock.micros())

    def report(self, damage: Damage) -> None:
        """Remember damage, once, and log where it is."""
        if damage in self.damage or len(self.damage) >= _MOST_DAMAGE:
            return
        self.damage.append(damage)
        _log.warning("damage in session %s at %s: %s", damage.session_id, damage.seq, damage.what)

    def close(self) -> None:
        """Stop the background, then the backend."""
        self.keeper.close()
        self.backend.close()
