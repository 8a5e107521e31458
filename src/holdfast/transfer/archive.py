"""An archive: an unredacted export that is read back and verified before it is relied on.

It is valid once it was read again from the disk, every line matches its checksum and every blob
its hash, and each session has as many messages in it as in the store.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.clock import Clock
from holdfast.errors import Damaged
from holdfast.operations.history import DamageCallback
from holdfast.storage.protocol import Backend
from holdfast.transfer.export import Progress, export
from holdfast.transfer.import_file import ImportFile
from holdfast.transfer.survey import Survey, Surveyor
from holdfast.values import Damage, ExportReport


def archive(
    backend: Backend,
    clock: Clock,
    to: str,
    messages: Mapping[str, int],
    *,
    progress: Progress | None,
    report: DamageCallback,
) -> tuple[ExportReport, dict[str, str]]:
    """Write sessions to a new file and verify it; `messages` counts each session's own messages.

    Return the report, and the sessions whose archived copy is not reliable, each with the reason.
    """
    damages: list[Damage] = []

    def note(damage: Damage) -> None:
        damages.append(damage)
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
    return written, _unreliable_sessions(messages, verify_export(written), damages)


def verify_export(written: ExportReport) -> Survey:
    """Read an export back; raise `Damaged` if it is not what was written."""
    with ImportFile(written.path) as source:
        surveyor = Surveyor(source)
        for line in source.lines():
            surveyor.add(line)
        found = surveyor.finish()
    messages = sum(section.messages for section in found.sections.values())
    records = sum(section.records for section in found.sections.values())
    there = (messages, records, len(found.blobs))
    if there != (written.messages, written.records, written.blobs):
        raise _verification_failed(written, "it does not contain what was written to it")
    for damage in (*found.damage.values(), *found.other_damage):
        raise _verification_failed(written, damage.what)
    return found


def _verification_failed(written: ExportReport, why: str) -> Damaged:
    return Damaged(
        f"{written.path} was written but did not pass verification: {why}. Nothing else was "
        "changed. Delete it and try again; if it fails again, use another disk."
    )


def _unreliable_sessions(
    messages: Mapping[str, int], found: Survey, damages: list[Damage]
) -> dict[str, str]:
    """Return the sessions that changed since they were counted, or are damaged, and why."""
    unlike: dict[str, str] = {}
    for id, count in messages.items():
        section = found.sections.get(id)
        if section is None or section.messages != count:
            unlike[id] = "it changed while it was archived"
    for damage in damages:
        for id in messages if damage.session_id is None else (damage.session_id,):
            unlike[id] = "it is damaged and cannot be archived completely"
    return unlike
