"""Simulated crashes and disk faults, for testing any program that stores data in SQLite.

`record` and `explore` rebuild every disk that a power cut during a run could leave; `Shim` and
`every` run a child process that is killed, or whose disk fails, at the Nth write or sync;
`failing_disk` makes any disk operation fail in this process.
"""

from holdfast.testing.faults.crash_states import (
    CrashState,
    Explored,
    StateFailed,
    explore,
    state_named,
    states,
)
from holdfast.testing.faults.failing_disk import FailingDisk, failing_disk
from holdfast.testing.faults.recorder import Recording, RecordingIncomplete, record
from holdfast.testing.faults.shim import (
    ChildHung,
    Outcome,
    Shim,
    ShimUnavailable,
    every,
)
from holdfast.testing.faults.trace import Trace

__all__ = [
    "ChildHung",
    "CrashState",
    "Explored",
    "FailingDisk",
    "Outcome",
    "Recording",
    "RecordingIncomplete",
    "Shim",
    "ShimUnavailable",
    "StateFailed",
    "Trace",
    "every",
    "explore",
    "failing_disk",
    "record",
    "state_named",
    "states",
]
