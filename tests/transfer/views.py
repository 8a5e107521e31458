"""Read everything that the API shows of a store, to compare two stores."""

from pathlib import Path
from typing import Any

from holdfast import Store
from holdfast.values import File, Message, SessionInfo, ToolResult, UsageReport


def listed(store: Store, *, trashed: bool = False) -> list[SessionInfo]:
    """Return all sessions, in list order."""
    found: list[SessionInfo] = []
    cursor: str | None = None
    while True:
        page = store.sessions(trashed=trashed, limit=50, cursor=cursor)
        found.extend(page)
        cursor = page.cursor
        if cursor is None:
            return found


def shown(store: Store) -> dict[str, Any]:
    """Return everything the API shows of a store."""
    sessions = [*listed(store), *listed(store, trashed=True)]
    stats = store.stats()
    return {
        "sessions": sessions,
        "each": {info.id: _session(store, info) for info in sessions},
        # Backends sort names that are not UTF-8 differently.
        "days": sorted(stats.days, key=lambda spent: (spent.day, spent.model or "")),
        "growth": stats.growth,
        "counts": (stats.sessions, stats.trashed, stats.branches, stats.messages, stats.turns),
        "blobs": (stats.blobs, stats.blob_bytes),
    }


def _session(store: Store, info: SessionInfo) -> dict[str, Any]:
    session = store.get(info.id)
    branches = session.branches()
    histories = {b.number: session.messages(branch=b.number) for b in branches}
    return {
        "branches": branches,
        "histories": histories,
        "head": session.head(),
        "records": session.records(all_branches=True),
        "state": session.records(),
        "lineage": session.lineage(),
        "children": sorted(session.children(), key=lambda link: link.session_id),
        "turns": session.turns(),
        "queued": session.queued(),
        "usage": _usage(session.usage()),
        "files": [store.blob(name) for h in histories.values() for m in h for name in files(m)],
        "kept files": [
            store.blob(file.sha256)
            for record in session.records(all_branches=True)
            for file in record.files.values()
            if file.sha256 is not None
        ],
    }


def _usage(report: UsageReport) -> UsageReport:
    by_model = tuple(sorted(report.by_model, key=lambda spent: spent.model or ""))
    return UsageReport(report.usage, report.cost, by_model)


def files(message: Message) -> list[str]:
    """Return the hashes of the files of a message."""
    found = []
    for part in message.parts:
        inner = part.content if isinstance(part, ToolResult) else (part,)
        found += [item.sha256 for item in inner if isinstance(item, File) and item.sha256]
    return found


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of an export except the first, which contains the time."""
    return path.read_bytes().splitlines(keepends=True)[1:]
