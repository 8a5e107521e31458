"""`peers`: every store at its pinned version beside Holdfast, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from bench import plan as plans
from bench.measure import Result
from bench.peers import concurrency, drivers, histories, lookups
from bench.peers.catalog import PEERS
from bench.peers.contest import FULL, QUICK, PeerRun
from bench.peers.driver_process import Installed
from bench.plan import Plan
from tools.environments import NotInstalled, environments_directory, interpreter

_PARTS: Final[dict[str, Callable[[PeerRun], Iterator[Result]]]] = {
    "durability": histories.durability,
    "append": histories.append,
    "writers": concurrency.writers,
    "kills": concurrency.kills,
    "lists": lookups.lists,
    "search": lookups.search,
    "forks": lookups.forks,
}


def _peers(parts: tuple[str, ...], plan: Plan) -> Iterator[Result]:
    """Install what is missing, then measure; a store that cannot be installed is skipped."""
    installed = []
    for entry in PEERS:
        try:
            python = interpreter(
                f"peer-{entry.driver}", entry.requirements, environments_directory()
            )
        except NotInstalled as error:
            yield Result(name="peers", what=entry.name, value=0, figure=f"skipped: {error}")
        else:
            module = f"{drivers.__name__}.{entry.driver}"
            installed.append(Installed(entry.name, python, module, entry.variant))
    sizes = QUICK if plan.sizes is plans.QUICK else FULL
    run = PeerRun(tuple(installed), sizes, plan.directory / "peers")
    for part in parts:
        yield from _PARTS[part](run)


# All of them, and each by itself.
PEER_BENCHMARKS: Final[dict[str, Callable[[Plan], Iterator[Result]]]] = {
    "peers": partial(_peers, tuple(_PARTS)),
    **{f"peers-{part}": partial(_peers, (part,)) for part in _PARTS},
}
