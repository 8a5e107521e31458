"""Process identity, and whether the process that holds a turn is alive.

A process is identified by host, boot, pid namespace, pid and start time; together these never
identify two processes. A holder with this process's boot and namespace can be checked: it is alive
if that pid exists with that start time. For any other holder, and on systems without `/proc`, that
is unknown and only the lease counts.
"""

from __future__ import annotations

import os
from functools import lru_cache

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
        namespace=_namespace(),
        started=_start_time(pid) or "",
    )


def is_alive(holder: Holder) -> bool | None:
    """Return whether the holder is alive; `None` if that cannot be checked from this process."""
    here = this_process()
    comparable = here.boot and here.namespace and here.started
    if not comparable or (holder.boot, holder.namespace) != (here.boot, here.namespace):
        return None
    return _start_time(holder.pid) == holder.started


def mark_given_up(token: str) -> None:
    """Record that this process gave up a turn, by its token; the store may still show it open."""
    _given_up.add(token)


def has_given_up(holder: Holder, token: str) -> bool:
    """Return whether this process is the holder and gave the turn up."""
    return token in _given_up and holder == this_process()


# Only for this process: a forked child is another holder.
_given_up: set[str] = set()


def _start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; `None` if it has ended."""
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
    """Return the text of a small file, or "" if it cannot be read.

    Without pathlib: importing that takes longer than opening a store.
    """
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
