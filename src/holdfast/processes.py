"""Process identity, and whether the process that holds a turn is alive.

A process is identified by host, boot, pid namespace, pid and start time; together these never
identify two processes. A holder with this process's boot and namespace can be checked: it is alive
if that pid exists with that start time, which is comparable within a time namespace. For any other
holder, and on systems without `/proc`, that is unknown and only the lease counts.
"""

from __future__ import annotations

import os
from functools import lru_cache

import msgspec

from holdfast.values import Holder


def this_process() -> Holder:
    """Return the identity of the calling process."""
    return _process_identity(os.getpid())


@lru_cache(maxsize=1)
def _process_identity(pid: int) -> Holder:
    """Return a process's identity; cached by pid, because a forked child is another process."""
    return Holder(
        host=os.uname().nodename,
        pid=pid,
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace("pid"),
        started=_start_time(pid) or "",
        time_namespace=_namespace("time"),
    )


def is_alive(holder: Holder) -> bool | None:
    """Return whether the holder is alive; `None` if that cannot be checked from this process."""
    here = this_process()
    comparable = here.boot and here.namespace and here.started
    if not comparable or (holder.boot, holder.namespace) != (here.boot, here.namespace):
        return None
    started = _start_time(holder.pid)
    if started is None or (not started and not _exists(holder.pid)):
        return False
    if not started or holder.time_namespace != here.time_namespace:
        return None
    return started == holder.started


def has_same_monotonic_clock(holder: Holder) -> bool:
    """Return whether the holder's monotonic clock is that of this process."""
    here = this_process()
    return bool(here.boot) and (holder.boot, holder.time_namespace) == (
        here.boot,
        here.time_namespace,
    )


def mark_given_up(token: str) -> None:
    """Record that this process gave up a turn, by its token; the store may still show it open."""
    _given_up.add(token)


def mark_held(token: str) -> None:
    """Record that this process holds a turn, or is about to, although it may have given it up."""
    _given_up.discard(token)


def has_given_up(holder: Holder, token: str) -> bool:
    """Return whether this process is the holder and gave the turn up."""
    return token in _given_up and msgspec.structs.replace(holder, lease=None) == this_process()


# Only for this process: a forked child is another holder.
_given_up: set[str] = set()


def _start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; `None` if it is a zombie.

    If it cannot be read, return "": there is no such process, `/proc` hides those of other users,
    or this process has too many open files.
    """
    stat = _read(f"/proc/{pid}/stat")
    # The command name is in parentheses and may hold anything; the fields follow the last one.
    fields = stat.rpartition(")")[2].split()
    if not fields:
        return ""
    return None if fields[0] in {"Z", "X"} else fields[19]


def _exists(pid: int) -> bool:
    """True if there is a process with this pid, of whichever user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _namespace(kind: str) -> str:
    """Return the namespace of this process; "" if the kernel has none of that kind."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115 - see `_read`
    except OSError:
        return ""


def _read(path: str) -> str:
    """Return the text of a small file, or "" if it cannot be read.

    Without pathlib: importing that takes longer than opening a store.
    """
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
