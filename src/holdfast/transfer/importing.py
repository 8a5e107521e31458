"""Reading sessions from lines.

Two passes. The first (`survey`) reads and checks the whole file and changes nothing; a file that
should not be imported is refused there. The second reads it again, family by family: sessions that
share messages come in one transaction each, so that a session is there whole or not at all,
whatever stops the import. Doing it again goes on where it stopped, since what is here already is
left as it is.

Lines are read as they are needed, in both passes, so memory does not grow with the histories.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from holdfast import ids
from holdfast.backends.base import Backend, Verb
from holdfast.errors import ReadOnly
from holdfast.records import Damage, ImportReport
from holdfast.transfer.exporting import Progress
from holdfast.transfer.sections import Hold, NotImportable, check_starts, made_up, newcomer
from holdfast.transfer.source import Source
from holdfast.transfer.survey import Section, Survey, Surveyor
from holdfast.verbs.importing import Arrived, Newcomer, bring_in, in_order

T = TypeVar("T")
_STEP: Final = 256 * 1024
_AT_ONCE: Final = 500


def import_(backend: Backend, path: str, progress: Progress | None) -> ImportReport:
    """Read a file of sessions and add those that are not here."""
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
    """The caller does not wait any more."""


class Meter:
    """Says how far it came, and stops it when nobody waits."""

    def __init__(self, total: int, progress: Progress | None, pace: int = _STEP) -> None:
        """Tell `progress` whenever so much more of `total` is done."""
        self._total = total
        self._progress = progress
        self._pace = pace
        self._done = self._told = 0
        self.stopped = False

    def step(self, size: int) -> None:
        """Count what was done."""
        if self.stopped:
            raise _Stopped
        self._done += size
        if self._progress is not None and self._done - self._told >= self._pace:
            self._told = self._done
            self._progress(min(self._done, self._total), self._total)

    def go_to(self, done: int) -> None:
        """Note that everything before this place is done."""
        self._done = done

    def finish(self) -> None:
        """Say that it is done."""
        if self._progress is not None:
            self._progress(self._total, self._total)


def patiently(backend: Backend, verb: Verb[T], meter: Meter) -> T:
    """Run a verb that may take longer than any deadline, once it has begun."""
    pending, done = backend.submit(verb), threading.Event()
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
    """The second pass."""

    def __init__(self, backend: Backend, source: Source, survey: Survey, meter: Meter) -> None:
        self._backend = backend
        self._source = source
        self._survey = survey
        self._meter = meter
        self._damage = dict(survey.damage)
        self._extra = list(survey.extra)
        self._whole = Arrived([], 0, [], [])

    def run(self) -> ImportReport:
        """Add family after family, then put them in order."""
        whole = self._whole
        for family in _families(self._survey.sections):
            self._family(family)
            self._meter.go_to(self._source.size + max(section.stop for section in family))
        sessions = sorted(whole.sessions)
        for first in range(0, len(sessions), _AT_ONCE):
            patiently(self._backend, in_order(sessions[first : first + _AT_ONCE]), self._meter)
        self._meter.finish()
        damage = [self._damage[number] for number in sorted(self._damage)]
        return ImportReport(
            sessions=len(sessions),
            messages=whole.messages,
            skipped=tuple(whole.skipped),
            damage=(*damage, *self._extra, *whole.damage),
            redacted=self._survey.header.redacted,
        )

    def _family(self, sections: Sequence[Section]) -> None:
        hold = Hold(self._source, self._survey, self._meter.step)
        newcomers = self._newcomers(sections)
        arrived = patiently(self._backend, bring_in(newcomers, hold, ids.session_id), self._meter)
        whole = self._whole
        whole.sessions += arrived.sessions
        whole.messages += arrived.messages
        whole.skipped += arrived.skipped
        whole.damage += arrived.damage
        self._damage |= hold.damaged
        self._extra += hold.missing.values()

    def _newcomers(self, sections: Sequence[Section]) -> list[Newcomer]:
        """Return who comes, parents first; one whose history cannot be made out stays away."""
        known: dict[str, Newcomer] = {}
        for section in sections:
            try:
                known[section.id] = newcomer(self._source, section, self._extra.append)
            except NotImportable as error:
                self._leave_out(section.id, error)
        found = {who.name: who for who in made_up(list(known.values()))}
        for name in found:
            what = "the session is not in the file, and forks come from it"
            self._extra.append(Damage(what=what, session_id=name))
        for who in known.values():
            try:
                check_starts(who, found)
            except NotImportable as error:
                self._leave_out(who.name, error)
            else:
                found[who.name] = who
        return list(found.values())

    def _leave_out(self, name: str, why: NotImportable) -> None:
        what = f"the session was not imported: {why}"
        self._extra.append(Damage(what=what, session_id=name))


def _families(sections: dict[str, Section]) -> Iterator[list[Section]]:
    """Group sessions that share messages, each group with parents first."""
    above: dict[str, str] = {}

    def root(name: str) -> str:
        while name in above:
            above[name] = above.get(above[name], above[name])
            name = above[name]
        return name

    for section in sections.values():
        for parent in section.parents:
            if parent in sections and root(parent) != root(section.id):
                above[root(section.id)] = root(parent)
    groups: dict[str, list[Section]] = {}
    for section in sections.values():
        groups.setdefault(root(section.id), []).append(section)
    for group in groups.values():
        yield _parents_first(group)


def _parents_first(group: list[Section]) -> list[Section]:
    """Order a group; an export has it in order already."""
    placed: dict[str, Section] = {}
    names = {section.id for section in group}
    waiting = group
    while waiting:
        before = len(placed)
        for section in waiting:
            if all(parent in placed or parent not in names for parent in section.parents):
                placed[section.id] = section
        if len(placed) == before:  # They go round in a circle, which no history does.
            placed.update({section.id: section for section in waiting})
        waiting = [section for section in waiting if section.id not in placed]
    return list(placed.values())
