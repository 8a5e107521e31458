"""Records and many processes: those that compare before they write lose no update."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Record
from holdfast.errors import Conflict
from tests.concurrency.children import Pipe
from tests.concurrency.conftest import StartChild
from tests.store_urls import Kind, place, with_options

_WRITERS = 4
_EACH = 10


def _count(pipe: Pipe, url: str, key: str) -> None:
    """Add to a counter of the session and to one of the store, each time from what was read."""
    with holdfast.open(url) as store:
        session = store.session(key)
        pipe.say("ready")
        pipe.hear()
        for _ in range(_EACH):
            while True:
                try:
                    session.append(_next(session.record("count")))
                    break
                except Conflict:
                    continue
            while True:
                try:
                    store.put_record(_next(store.record("count")))
                    break
                except Conflict:
                    continue
        pipe.say("done")


def _next(newest: Record | None) -> Record:
    number: Any = 0 if newest is None else newest.data
    return Record("count", data=number + 1, after=None if newest is None else newest.id)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_four_processes_that_compare_lose_no_update(
    tmp_path: Path, child: StartChild, kind: Kind
) -> None:
    """Each adds one at a time, to a counter of a session and to one of the store."""
    with place(kind, tmp_path) as url:
        patient = with_options(url, deadline=60)
        with holdfast.open(patient) as store:
            session = store.session("shared")
            writers = [child(_count, patient, "shared") for _ in range(_WRITERS)]
            for each in writers:
                assert each.hear() == "ready"
            for each in writers:
                each.say("go")
            for each in writers:
                assert each.hear() == "done"
                each.join()
            counted = [record.data for record in session.records("count")]
            assert counted == list(range(1, _WRITERS * _EACH + 1))
            shared = store.record("count")
            assert shared is not None
            assert shared.data == _WRITERS * _EACH
            assert store.verify() == []
