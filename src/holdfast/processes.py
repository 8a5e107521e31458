"""Who is alive.

A holder is named by host, boot, pid namespace, pid and the process's start time; together these
never name two processes. A holder of the same boot and namespace can be looked up: it is alive if
that pid exists with that start time. Of any other holder nothing is known here, and only its
lease counts. Where the system has no `/proc` nothing can be compared either.
"""

from __future__ import annotations

import os
from functools import lru_cache

from holdfast.records import Holder


def this_process() -> Holder:
    """Name the calling process."""
    return _name_process(os.getpid())


@lru_cache(maxsize=1)
def _name_process(pid: int) -> Holder:
    """Name a process; keyed by pid, because a forked child is somebody else."""
    return Holder(
        host=os.uname().nodename,
        pid=pid,
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        started=_start_time(pid) or "",
    )


def is_alive(holder: Holder) -> bool | None:
    """Return whether the holder lives; `None` when that cannot be known from here."""
    here = this_process()
    comparable = here.boot and here.namespace and here.started
    if not comparable or (holder.boot, holder.namespace) != (here.boot, here.namespace):
        return None
    return _start_time(holder.pid) == holder.started


def give_up(token: str) -> None:
    """Note that this process no longer holds what it holds under this token, and cannot say so."""
    _given_up.add(token)


def has_given_up(holder: Holder, token: str) -> bool:
    """Return whether this process is the holder, and has given it up."""
    return token in _given_up and holder == this_process()


# Of this process alone: a forked child is another holder.
_given_up: set[str] = set()


def _start_time(pid: int) -> str | None:
    """Read when the process started, in clock ticks since boot; `None` if it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    # The command name is in parentheses and may hold anything; the fields follow the last one.
    fields = stat.rpartition(")")[2].split()
    if not fields or fields[0] in {"Z", "X"}:
        return None
    return fields[19]


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - see `_read`
    except OSError:
        return ""


def _read(path: str) -> str:
    """Read a small file, without pathlib: importing that takes longer than opening a store."""
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
