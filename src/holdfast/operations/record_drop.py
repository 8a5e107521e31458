"""Dropping records: erasing state that is no longer needed, while its session lives.

All records of a kind are erased, on all branches of the session, or those with certain keys. The
newest ones of the current history can be kept, and what the history of another session runs through
always is: a fork has the state of the position it started at. Numbers of dropped records are never
assigned again.

A drop of many records is written in steps, so that no other writer waits longer than for one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import validation
from holdfast.errors import BadQuery
from holdfast.operations.append import find_head
from holdfast.storage.ancestry import Segment, record_ranges
from holdfast.storage.protocol import Operation, Snapshot, Transaction
from holdfast.storage.rows import BranchRow, HeadRow
from holdfast.values import DropReport

MAX_STEP_RECORDS: Final = 10_000

Key: TypeAlias = str | UnsetType | None


class RecordDrop(msgspec.Struct, frozen=True):
    """What to drop: a kind, its keys (`UNSET`: any), and how many of the newest to keep."""

    kind: str
    keys: tuple[Key, ...]
    keep: int


class StepStart(msgspec.Struct, frozen=True):
    """Where a step continues: at one of the look-ups, below a number."""

    lookup: int = 0
    below: int | None = None


class StepEnd(msgspec.Struct, frozen=True):
    """What a step dropped, and where the next one starts; `None` after the last."""

    report: DropReport
    next: StepStart | None


def check_drop(kind: str, keys: Collection[str | None] | None, keep: int | None) -> RecordDrop:
    """Return what to drop; raise, naming the field, if a value is not valid."""
    validation.check_name(kind, "kind")
    if isinstance(keys, str) or not isinstance(keys, Collection | None):
        raise BadQuery("keys: expected a list of keys")
    for key in keys or ():
        if key is not None:
            validation.check_name(key, "keys")
    if keep is not None and validation.check_number(keep, "keep") == 0:
        raise BadQuery("keep: expected a number from 1 up; leave it out to drop all")
    wanted: tuple[Key, ...] = (UNSET,) if keys is None else tuple(dict.fromkeys(keys))
    return RecordDrop(kind, wanted, keep or 0)


def drop_step(session: int, wanted: RecordDrop, start: StepStart) -> Operation[StepEnd]:
    """Drop the next records, at most `MAX_STEP_RECORDS`."""

    def run(tx: Transaction) -> StepEnd:
        head = find_head(tx, session)
        branches = tx.branches(session=session)
        found, following = _next_numbers(tx, branches, wanted, start)
        spared = _newest(tx, head, wanted)
        required = required_records(tx, branches)
        kept = 0
        to_drop: dict[int, list[int]] = {}
        for branch, number in found:
            if (branch, number) in spared:
                continue
            if number <= required.get(branch, 0):
                kept += 1
            else:
                to_drop.setdefault(branch, []).append(number)
        return StepEnd(_drop(tx, to_drop, kept), following)

    return run


def _drop(tx: Transaction, to_drop: dict[int, list[int]], kept: int) -> DropReport:
    records, unused = 0, set[str]()
    for branch, numbers in to_drop.items():
        cut = tx.drop_records(branch, numbers)
        records += cut.records
        unused |= cut.blobs
    blobs, size = tx.drop_blobs(unused) if unused else (0, 0)
    return DropReport(records=records, kept=kept, blobs=blobs, blob_bytes=size)


def _next_numbers(
    snapshot: Snapshot, branches: Sequence[BranchRow], wanted: RecordDrop, start: StepStart
) -> tuple[list[tuple[int, int]], StepStart | None]:
    """Return the next records of the kind and keys, by branch and number, and where to go on."""
    lookups = [(branch, key) for branch in branches for key in wanted.keys]
    found: list[tuple[int, int]] = []
    below = start.below
    for at in range(start.lookup, len(lookups)):
        branch, key = lookups[at]
        most = MAX_STEP_RECORDS - len(found)
        last = None if below is None else below - 1
        numbers = snapshot.record_numbers(branch.own(last), wanted.kind, key, limit=most)
        found += [(branch.n, number) for number in numbers]
        if len(numbers) == most:
            return found, StepStart(at, numbers[-1])
        below = None
    return found, None


def _newest(snapshot: Snapshot, head: HeadRow, wanted: RecordDrop) -> set[tuple[int, int]]:
    """Return the newest records of the current history that are to be kept."""
    found: set[tuple[int, int]] = set()
    for segment in record_ranges(snapshot.path(head.branch)) if wanted.keep else ():
        most = wanted.keep - len(found)
        numbers = _numbers(snapshot, segment, wanted, most)
        found.update((segment.branch, number) for number in sorted(numbers)[-most:])
        if len(found) == wanted.keep:
            break
    return found


def _numbers(snapshot: Snapshot, segment: Segment, wanted: RecordDrop, most: int) -> Iterator[int]:
    for key in wanted.keys:
        yield from snapshot.record_numbers(segment, wanted.kind, key, limit=most)


def required_records(snapshot: Snapshot, branches: Sequence[BranchRow]) -> dict[int, int]:
    """Return the number of the last record that other sessions need of each branch of a session.

    A branch that no history of another session runs through is left out.
    """
    required: dict[int, int] = {}
    for branch in reversed(branches):  # A branch is newer than the one it starts on.
        starts = [
            child.fork_record or 0
            for child in snapshot.branches(parent=branch.n)
            if child.session != branch.session or child.n in required
        ]
        if starts:
            required[branch.n] = max(starts)
    return required
