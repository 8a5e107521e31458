"""`frameworks`: each adapter beside its framework's own store, in the same environment and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

import holdfast
from bench import plan as plans
from bench.frameworks import drivers
from bench.frameworks.catalog import ENTRIES, FrameworkEntry
from bench.frameworks.pair import Pair
from bench.measure import Result
from bench.peers.contest import FULL, QUICK, PeerRun
from bench.peers.driver_process import Installed
from bench.plan import Plan
from tools.environments import NotInstalled

_QUICK_HISTORIES: Final = (20, 400)
_FILL_S: Final = 240.0


def _frameworks(entries: tuple[FrameworkEntry, ...], plan: Plan) -> Iterator[Result]:
    """Install what is missing, then measure; a framework that cannot be installed is skipped."""
    for entry in entries:
        try:
            python = entry.framework.interpreter()
        except NotInstalled as error:
            yield Result(name="frameworks", what=entry.title, value=0, figure=f"skipped: {error}")
        else:
            yield from Pair(entry, _run(entry, python, plan)).results()


def _run(entry: FrameworkEntry, python: Path, plan: Plan) -> PeerRun:
    sizes = msgspec.structs.replace(FULL, histories=entry.histories, fill_seconds=_FILL_S)
    if plan.sizes is plans.QUICK:
        sizes = msgspec.structs.replace(QUICK, histories=_QUICK_HISTORIES)
    module = f"{drivers.__name__}.{entry.name}"
    packages = (Path(holdfast.__file__).parent,)
    installed = tuple(
        Installed(name, python, module, variant, packages)
        for name, variant in ((entry.own, "Own"), (entry.adapter, "Adapter"))
    )
    return PeerRun(installed, sizes, plan.directory / "frameworks" / entry.name)


# All of them, and each by itself.
FRAMEWORK_BENCHMARKS: Final[dict[str, Callable[[Plan], Iterator[Result]]]] = {
    "frameworks": partial(_frameworks, ENTRIES),
    **{f"frameworks-{entry.name}": partial(_frameworks, (entry,)) for entry in ENTRIES},
}
