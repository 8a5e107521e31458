"""Steps that store and drop records, and what must hold of them after every step."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import UNSET

from holdfast.errors import Conflict, HoldfastError, IdConflict
from holdfast.values import Head, Message, Record
from tests.model.driver import Driver, places, which
from tests.model.reference import Kept

_KINDS = ("state", "other")
_KEYS = (None, "a", "b\0")
_NAMES = [(kind, key) for kind in _KINDS for key in _KEYS]
names = st.sampled_from(_NAMES)


def bare(record: Record) -> Record:
    """Return a record without its seq, its time and what it came after."""
    return msgspec.structs.replace(record, seq=None, created_at=None, after=UNSET)


class Recording(Driver):
    """Records in batches with messages, retries, conditions, drops."""

    @rule(which=which, data=st.data())
    def record(self, which: int, data: st.DataObject) -> None:
        """Store records, some of them among messages, some on a condition."""
        model = self.model(which)
        batch: list[Message | Record] = []
        for is_message in data.draw(st.lists(st.booleans(), max_size=3)):
            kind, key = data.draw(names)
            new = Message.user("said") if is_message else Record(kind, key=key, data=len(batch))
            batch.append(new)
        kind, key = data.draw(names)
        newest = model.newest(kind, key)
        there = None if newest is None else newest.record.id
        holds: bool = data.draw(st.booleans())
        mine = any(isinstance(e, Record) and (e.kind, e.key) == (kind, key) for e in batch)
        conditional = Record(kind, key=key, data="after", after=there if holds else "wrong")
        batch.append(conditional)
        session = self.session(model)
        if model.who.trashed or not holds or mine:
            with pytest.raises(Conflict):
                session.append(*batch)
            return
        assert session.append(*batch) == model.record(batch)
        self.world.touch(model)

    @rule(which=which, data=st.data(), change=st.booleans())
    def record_again(self, which: int, data: st.DataObject, change: bool) -> None:
        """A record of the history is not stored again, nor another one under its id."""
        model = self.model(which)
        if not model.records:
            return
        kept = data.draw(st.sampled_from(model.records))
        session = self.session(model)
        if change:
            with pytest.raises(IdConflict):
                session.append(msgspec.structs.replace(kept.record, data="changed"))
            return
        again = msgspec.structs.replace(kept.record, after="whatever")
        assert session.append(again) == Head(model.head.branch, kept.seq)

    @rule(which=which, data=st.data(), name=names)
    def read_a_record(self, which: int, data: st.DataObject, name: tuple[str, str | None]) -> None:
        """At any position, also on abandoned branches."""
        model, (kind, key) = self.model(which), name
        at = data.draw(places(model))
        session = self.session(model)
        try:
            line, seq = model.locate(at)
        except HoldfastError as refusal:
            with pytest.raises(type(refusal)):
                session.record(kind, key, at=at)
            return
        expected = [one for one in line.records if one.seq <= seq]
        named = [one for one in expected if (one.record.kind, one.record.key) == (kind, key)]
        found = session.record(kind, key, at=at)
        assert (found and bare(found)) == (bare(named[-1].record) if named else None)

    @rule(which=which, data=st.data(), kind=st.sampled_from(_KINDS))
    def drop(self, which: int, data: st.DataObject, kind: str) -> None:
        """Everything of the kind, except the newest and what other sessions have."""
        model = self.model(which)
        keys = data.draw(st.none() | st.lists(st.sampled_from(_KEYS)))
        keep = data.draw(st.none() | st.integers(1, 3))

        def is_wanted(one: Kept) -> bool:
            return one.record.kind == kind and (keys is None or one.record.key in keys)

        own = [one for one in model.all_records() if one.home[0] == model.id and is_wanted(one)]
        spared = [one for one in model.records if is_wanted(one)][-keep:] if keep else []
        left = [one for one in own if not _has(spared, one)]
        needed = [one for one in left if self.world.is_shared(one, model)]
        report = self.session(model).drop(kind=kind, keys=keys, keep=keep)
        assert (report.records, report.kept) == (len(left) - len(needed), len(needed))
        assert report.pending == ()
        model.forget([one for one in left if not _has(needed, one)])

    @invariant()
    def records_are_as_they_must_be(self) -> None:
        for model in self.world.models.values():
            session = self.session(model)
            found = session.records()
            assert _told(found) == [(bare(one.record), one.seq) for one in model.records]
            assert session.records(limit=2) == found[-2:]
            everywhere = session.records(all_branches=True)
            assert _told(everywhere) == [(bare(one.record), one.seq) for one in model.all_records()]
            for line in model.lines:
                for kind, key in _NAMES:
                    newest = session.record(kind, key, at=line.head)
                    named = [
                        one.record
                        for one in line.records
                        if (one.record.kind, one.record.key) == (kind, key)
                    ]
                    assert (newest and newest.id) == (named[-1].id if named else None)


def _told(records: Sequence[Record]) -> list[tuple[Record, Any]]:
    return [(bare(record), record.seq) for record in records]


def _has(several: Sequence[Kept], one: Kept) -> bool:
    return any(each is one for each in several)
