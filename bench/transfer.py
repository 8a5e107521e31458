"""Export and import: time and memory, against a naive loop.

Each runs in a process of its own, which reports how far its memory rose above what it had with
everything imported and the store open. The naive loops read a whole history, write each message by
`json.dumps`, read each line back by `json.loads` and append turn by turn: no branches, turns,
blobs or checksums, and no detection of damaged lines.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

import holdfast
from bench import material
from bench.measure import Result, Times, alternate, median, ratio
from bench.plan import KEY, Plan

_MORE: Final = 4e6
_ROUNDS: Final = 3
_MEGABYTE: Final = 1e6

_MEMORY: Final = """
import json, resource, sys, time
import msgspec, holdfast, holdfast.storage.sqlite.backend

def peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line[:6] == "VmHWM:")
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def report(work):
    before, started = peak(), time.perf_counter()
    messages = work()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "memory": peak() - before, "messages": messages}))

store = holdfast.open(sys.argv[1], durability="process")
session = store.session(sys.argv[3])
session.messages(limit=1)
"""
_EXPORT: Final = """
import holdfast.transfer.export
report(lambda: store.export(sys.argv[2], overwrite=True, redact=None).messages)
"""
_REDACTED: Final = """
import holdfast.transfer.export
report(lambda: store.export(sys.argv[2], overwrite=True).messages)
"""
_NAIVE_EXPORT: Final = """
def work():
    history = session.messages()
    with open(sys.argv[2], "w") as file:
        for message in history:
            file.write(json.dumps(msgspec.to_builtins(message)) + "\\n")
    return len(history)
report(work)
"""
_IMPORT: Final = """
import holdfast.transfer.import_
report(lambda: store.import_(sys.argv[2], trust=True).messages)
"""
_NAIVE_IMPORT: Final = """
def work():
    with open(sys.argv[2]) as file:
        history = [msgspec.convert(json.loads(line), holdfast.Message) for line in file]
    for first in range(0, len(history), 4):
        session.append(*history[first : first + 4])
    return len(history)
report(work)
"""


class WorkReport(msgspec.Struct, frozen=True):
    """What a process reported of its work."""

    seconds: float
    memory: int
    messages: int


class Measured(msgspec.Struct, frozen=True):
    """The rounds of one kind of work: seconds each, and the highest memory."""

    times: list[Times]
    memory: float


def carry(plan: Plan) -> Iterator[Result]:
    """Export histories of two lengths and import them into new stores."""
    short, long = plan.sizes.carried
    less = _measure(plan, short)
    more = _measure(plan, long)
    for operation in ("export", "import"):
        ours, naive = more[operation], more[f"naive {operation}"]
        size = _size(plan, long) / _MEGABYTE
        yield Result(
            name="carry",
            what=f"{operation} of {long:,} messages",
            value=median(ours.times),
            figure=f"{_rate(long, size, ours)} (naive: {_rate(long, None, naive)})",
            ratio=ratio(ours.times, naive.times),
            of="naive, time",
        )
        # The engine keeps up to 2 MB of pages, which a short history does not fill.
        flat = ours.memory <= less[operation].memory + _MORE
        yield Result(
            name="carry",
            what="the same: memory while at it",
            value=ours.memory,
            figure=(
                f"{_megabytes(ours.memory)} (of {short:,}: {_megabytes(less[operation].memory)}; "
                f"naive: {_megabytes(naive.memory)})"
            ),
            ratio=ours.memory / naive.memory,
            of="naive",
            bar=f"≤ {short:,} + {_megabytes(_MORE)}",
            met=flat,
        )
    redacted, size = more["redacted export"], _size(plan, long) / _MEGABYTE
    yield Result(
        name="carry",
        what=f"redacted export of {long:,} messages",
        value=median(redacted.times),
        figure=_rate(long, size, redacted),
        ratio=ratio(redacted.times, more["export"].times),
        of="whole, time",
    )


def _measure(plan: Plan, length: int) -> dict[str, Measured]:
    """Run each of the four in alternating rounds; every import goes into a store of its own."""
    source = plan.path(f"carried-{length}")
    with holdfast.open(source, durability="process") as store:
        material.lengthen(store, store.session(KEY), length)
    lines, plain = _lines(plan, length), plan.path("naive").with_suffix(".jsonl")
    works: dict[str, Callable[[], WorkReport]] = {
        "export": lambda: _run(_EXPORT, source, lines, length),
        "redacted export": lambda: _run(_REDACTED, source, plan.path("redacted"), length),
        "naive export": lambda: _run(_NAIVE_EXPORT, source, plain, length),
        "import": lambda: _run(_IMPORT, plan.path("import"), lines, length),
        "naive import": lambda: _run(_NAIVE_IMPORT, plan.path("import"), plain, length),
    }
    memory = dict.fromkeys(works, 0)

    def round_of(name: str) -> Callable[[], Times]:
        def run() -> Times:
            report = works[name]()
            memory[name] = max(memory[name], report.memory)
            return [report.seconds]

        return run

    exports = [name for name in works if "export" in name]
    imports = [name for name in works if "import" in name]
    found = dict(zip(exports, alternate(_ROUNDS, *map(round_of, exports)), strict=True))
    found |= dict(zip(imports, alternate(_ROUNDS, *map(round_of, imports)), strict=True))
    return {name: Measured(found[name], memory[name]) for name in works}


def _run(code: str, store: Path, file: Path, length: int) -> WorkReport:
    key = KEY if code in {_EXPORT, _REDACTED, _NAIVE_EXPORT} else "not yet there"
    command = [sys.executable, "-c", _MEMORY + code, str(store), str(file), key]
    done = subprocess.run(command, check=True, capture_output=True)
    report = msgspec.json.decode(done.stdout, type=WorkReport)
    assert report.messages == length
    return report


def _lines(plan: Plan, length: int) -> Path:
    return plan.directory / f"carried-{length}.jsonl"


def _size(plan: Plan, length: int) -> int:
    return _lines(plan, length).stat().st_size


def _rate(messages: int, megabytes: float | None, measured: Measured) -> str:
    seconds = median(measured.times)
    rate = f"{messages / seconds:,.0f} messages/s"
    return rate if megabytes is None else f"{rate}, {megabytes / seconds:,.0f} MB/s"


def _megabytes(size: float) -> str:
    return f"{size / _MEGABYTE:,.0f} MB"
