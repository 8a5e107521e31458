"""Import sessions from a file of JSON lines.

Two passes. The first (`survey`) reads and checks the whole file without storing anything; an
invalid file is refused there. The second reads it again, family by family: sessions that share
messages are imported in one transaction, so that a session is imported completely or not at all,
whatever stops the import. Running it again resumes where it stopped, because sessions that exist
already are skipped.

Both passes stream the lines, so memory does not grow with the histories.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from holdfast import ids
from holdfast.errors import ReadOnly
from holdfast.operations.session_import import Arrived, Newcomer, bring_in, in_order
from holdfast.storage.protocol import Backend, Verb
from holdfast.transfer.export import Progress
from holdfast.transfer.import_file import Source
from holdfast.transfer.session_reader import Hold, NotImportable, check_starts, made_up, newcomer
from holdfast.transfer.survey import Section, Survey, Surveyor
from holdfast.values import Damage, ImportReport

T = TypeVar("T")
_STEP: Final = 256 * 1024
_AT_ONCE: Final = 500


def import_(backend: Backend, path: str, progress: Progress | None) -> ImportReport:
    """Import the sessions of a file that the store does not have."""
    if backend.readonly:
        raise ReadOnly("this store was opened for reading only; nothing was imported.")
    with Source(path) as source:
        meter = Meter(2 * source.size, progress)
        surveyor = Surveyor(source)
        for line in source.lines():
            surveyor.add(line)
            meter.step(line.length)
        return _Import(backend, source, surveyor.finish(), meter).run()


class _Stopped(Exception):
    """The caller was interrupted and no longer waits."""


class Meter:
    """Reports progress; raises in the worker once the caller no longer waits."""

    def __init__(self, total: int, progress: Progress | None, pace: int = _STEP) -> None:
        """Call `progress` each time another `pace` of `total` is done."""
        self._total = total
        self._progress = progress
        self._pace = pace
        self._done = self._told = 0
        self.stopped = False

    def step(self, size: int) -> None:
        """Count `size` as done."""
        if self.stopped:
            raise _Stopped
        self._done += size
        if self._progress is not None and self._done - self._told >= self._pace:
            self._told = self._done
            self._progress(min(self._done, self._total), self._total)

    def go_to(self, done: int) -> None:
        """Set how much is done."""
        self._done = done

    def finish(self) -> None:
        """Report that all is done."""
        if self._progress is not None:
            self._progress(self._total, self._total)


def patiently(backend: Backend, operation: Verb[T], meter: Meter) -> T:
    """Run an operation; the deadline covers only its wait in the queue, not its run."""
    pending, done = backend.submit(operation), threading.Event()
    pending.when_done(done.set)
    try:
        if not done.wait(backend.deadline) and not pending.give_up():
            done.wait()
    except BaseException:
        meter.stopped = True
        if not pending.give_up():
            done.wait()
        raise
    return pending.outcome()


class _Import:
    """The second pass of an import."""

    def __init__(self, backend: Backend, source: Source, survey: Survey, meter: Meter) -> None:
        self._backend = backend
        self._source = source
        self._survey = survey
        self._meter = meter
        self._damage = dict(survey.damage)
        self._extra = list(survey.extra)
        self._whole = Arrived([], 0, [], [])

    def run(self) -> ImportReport:
        """Import family after family, then set the order in which lists show them."""
        total = self._whole
        for family in _families(self._survey.sections):
            self._family(family)
            self._meter.go_to(self._source.size + max(section.stop for section in family))
        sessions = sorted(total.sessions)
        for first in range(0, len(sessions), _AT_ONCE):
            patiently(self._backend, in_order(sessions[first : first + _AT_ONCE]), self._meter)
        self._meter.finish()
        damage = [self._damage[number] for number in sorted(self._damage)]
        return ImportReport(
            sessions=len(sessions),
            messages=total.messages,
            skipped=tuple(total.skipped),
            damage=(*damage, *self._extra, *total.damage),
            redacted=self._survey.header.redacted,
        )

    def _family(self, sections: Sequence[Section]) -> None:
        content = Hold(self._source, self._survey, self._meter.step)
        sessions = self._newcomers(sections)
        operation = bring_in(sessions, content, ids.session_id)
        imported = patiently(self._backend, operation, self._meter)
        total = self._whole
        total.sessions += imported.sessions
        total.messages += imported.messages
        total.skipped += imported.skipped
        total.damage += imported.damage
        self._damage |= content.damaged
        self._extra += content.missing.values()

    def _newcomers(self, sections: Sequence[Section]) -> list[Newcomer]:
        """Return the sessions to import, parents first; report and skip those without a history."""
        known: dict[str, Newcomer] = {}
        for section in sections:
            try:
                known[section.id] = newcomer(self._source, section, self._extra.append)
            except NotImportable as error:
                self._leave_out(section.id, error)
        found = {session.name: session for session in made_up(list(known.values()))}
        for name in found:
            what = "the session is not in the file, but forks in the file start from it"
            self._extra.append(Damage(what=what, session_id=name))
        for session in known.values():
            try:
                check_starts(session, found)
            except NotImportable as error:
                self._leave_out(session.name, error)
            else:
                found[session.name] = session
        return list(found.values())

    def _leave_out(self, name: str, why: NotImportable) -> None:
        what = f"the session was not imported: {why}"
        self._extra.append(Damage(what=what, session_id=name))


def _families(sections: dict[str, Section]) -> Iterator[list[Section]]:
    """Return groups of sessions that share messages, each with parents first."""
    parents: dict[str, str] = {}  # A union-find forest.

    def root(name: str) -> str:
        while name in parents:
            parents[name] = parents.get(parents[name], parents[name])
            name = parents[name]
        return name

    for section in sections.values():
        for parent in section.parents:
            if parent in sections and root(parent) != root(section.id):
                parents[root(section.id)] = root(parent)
    groups: dict[str, list[Section]] = {}
    for section in sections.values():
        groups.setdefault(root(section.id), []).append(section)
    for group in groups.values():
        yield _parents_first(group)


def _parents_first(group: list[Section]) -> list[Section]:
    """Sort a group so that parents come first, as an export has it already."""
    ordered: dict[str, Section] = {}
    names = {section.id for section in group}
    waiting = group
    while waiting:
        before = len(ordered)
        for section in waiting:
            if all(parent in ordered or parent not in names for parent in section.parents):
                ordered[section.id] = section
        if len(ordered) == before:  # A cycle, which no store writes: any order will do.
            ordered.update({section.id: section for section in waiting})
        waiting = [section for section in waiting if section.id not in ordered]
    return list(ordered.values())
