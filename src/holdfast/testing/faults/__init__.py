"""Crashes and disk faults on purpose, for whoever keeps data in SQLite and wants to know.

`record` and `explore` rebuild every disk that a power cut could leave behind a run; `Shim` and
`every` run a child process that is killed, or whose disk fails, at the Nth write or sync.
"""

from holdfast.testing.faults.crashstates import (
    CrashState,
    Explored,
    StateFailed,
    explore,
    state_named,
    states,
)
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
    "Outcome",
    "Recording",
    "RecordingIncomplete",
    "Shim",
    "ShimUnavailable",
    "StateFailed",
    "Trace",
    "every",
    "explore",
    "record",
    "state_named",
    "states",
]
