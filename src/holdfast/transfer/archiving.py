"""An archive: an export that is read back before anybody relies on it.

It is a whole copy, nothing in it is replaced. It counts once it was read again from the disk, every
line fits its checksum and every file its hash, and each session has as many messages in it as in
the store.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.backends.base import Backend
from holdfast.clock import Clock
from holdfast.errors import Damaged
from holdfast.records import Damage, ExportReport
from holdfast.transfer.exporting import Progress, export
from holdfast.transfer.source import Source
from holdfast.transfer.survey import Survey, Surveyor
from holdfast.verbs.histories import Report


def archive(
    backend: Backend,
    clock: Clock,
    to: str,
    messages: Mapping[str, int],
    *,
    progress: Progress | None,
    report: Report,
) -> tuple[ExportReport, dict[str, str]]:
    """Write sessions (ids, and how many messages each wrote) to a new file, and check it.

    Gives the report, and which sessions are not in it as they were, and why.
    """
    met: list[Damage] = []

    def note(damage: Damage) -> None:
        met.append(damage)
        report(damage)

    written = export(
        backend,
        clock,
        to,
        list(messages),
        overwrite=False,
        redact=None,
        progress=progress,
        report=note,
    )
    return written, _unlike(messages, check(written), met)


def check(written: ExportReport) -> Survey:
    """Read an export back; `Damaged` if it is not what was written."""
    with Source(written.path) as source:
        surveyor = Surveyor(source)
        for line in source.lines():
            surveyor.add(line)
        found = surveyor.finish()
    there = sum(section.messages for section in found.sections.values())
    if there != written.messages or len(found.blobs) != written.blobs:
        raise _not_whole(written, "it does not hold what was written to it")
    for damage in (*found.damage.values(), *found.extra):
        raise _not_whole(written, damage.what)
    return found


def _not_whole(written: ExportReport, why: str) -> Damaged:
    return Damaged(
        f"{written.path} was written and cannot be relied on: {why}. Nothing else was changed. "
        "Delete it and try again, on another disk if it stays so."
    )


def _unlike(messages: Mapping[str, int], found: Survey, met: list[Damage]) -> dict[str, str]:
    """Which sessions are not in the archive as they were when it was decided to write them."""
    unlike: dict[str, str] = {}
    for id, count in messages.items():
        section = found.sections.get(id)
        if section is None or section.messages != count:
            unlike[id] = "it changed while it was archived"
    for damage in met:
        for id in messages if damage.session_id is None else (damage.session_id,):
            unlike[id] = "it cannot be archived as it is, some of it is damaged"
    return unlike
