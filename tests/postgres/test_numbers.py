"""Activity numbers while processes write to few sessions, and one of them is killed.

Whatever they do: no session has a number between the two of another one, each is listed once, its
number never falls, and a follower hears of the last write to each, in order.
"""

import random
import time
from itertools import count, islice, pairwise

import psycopg
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.session import number_of
from holdfast.storage.protocol import Transaction
from holdfast.testing.conformance.fixtures import drain
from holdfast.values import Activity
from tests.concurrency.children import Pipe
from tests.postgres.conftest import OpenStore, StartChild
from tests.postgres.pauses import LONG, touch

_KEYS = [f"k{number}" for number in range(4)]
_WRITERS = 3
_HEARD = 60  # when one is killed
_NUMBERS = """
SELECT h.session, h.recency, h.activity, r.recency, r.trashed = (s.trashed_at IS NOT NULL)
FROM holdfast.heads h
  FULL JOIN holdfast.recent r ON r.tenant = h.tenant AND r.session = h.session
  LEFT JOIN holdfast.sessions s ON s.tenant = h.tenant AND s.n = h.session
ORDER BY h.recency
"""


def _step(store: Store, chance: random.Random) -> None:
    """Do one of the things that take numbers, or erase them."""
    session = store.session(chance.choice(_KEYS))
    kind = chance.randrange(12)
    if kind == 0:
        session.fork()
    elif kind == 1:
        forked = session.fork()
        forked.append(Message.user("to be purged"))
        store.purge(forked.id)
    elif kind == 2:
        store.trash(session.id)
        session.append(Message.user("in the trash"))
        store.restore(session.id)
    elif kind <= 4:
        others = [store.session(key) for key in chance.sample(_KEYS, 3)]

        def write(tx: Transaction) -> None:
            for other in others:
                touch(other)(tx)

        store.backend.write(write)
    else:
        for number in range(chance.randrange(1, 5)):
            session.append(Message.user(str(number)))


def _write(pipe: Pipe, url: str, seed: int, steps: int | None) -> None:
    chance = random.Random(seed)
    with holdfast.open(url) as store:
        for _ in islice(count(), steps):
            try:
                _step(store, chance)
            except OutcomeUnknown:
                raise
            except HoldfastError:
                continue  # Another one has trashed it, or has taken its key.
        pipe.say("done")


def _check_numbers(admin: psycopg.Connection, before: dict[int, int]) -> dict[int, int]:
    """Return the numbers of all sessions; check them, and that none has fallen since."""
    rows = admin.execute(_NUMBERS).fetchall()
    for session, recency, activity, listed, same_list in rows:
        assert recency is not None
        assert recency == listed <= activity, rows
        assert same_list, rows
        assert before.get(session, 0) <= activity, (session, before, rows)
    assert all(first[2] < second[1] for first, second in pairwise(rows)), rows
    return {session: activity for session, _, activity, *_ in rows}


@pytest.mark.parametrize("steps", [40, pytest.param(1_000, marks=pytest.mark.long)])
def test_numbers_rise_whatever_processes_do(
    open_store: OpenStore,
    url: str,
    postgres_admin: psycopg.Connection,
    child: StartChild,
    steps: int,
) -> None:
    store = open_store()
    for key in _KEYS:
        store.session(key)
    follower = store.follow()
    heard = drain(follower)
    writers = [child(_write, url, seed, steps) for seed in range(_WRITERS)]
    killed = child(_write, url, _WRITERS, None)
    numbers: dict[int, int] = {}
    while not all(writer.has_news() for writer in writers):
        heard += drain(follower)
        numbers = _check_numbers(postgres_admin, numbers)
        if len(heard) > _HEARD:
            killed.kill()
    for writer in writers:
        assert writer.hear() == "done"
    killed.kill()
    # The server may still commit what the killed one had sent.
    until = time.monotonic() + LONG
    while _last_heard(store, heard) != numbers:
        assert time.monotonic() < until
        heard += drain(follower)
        numbers = _check_numbers(postgres_admin, numbers)
    assert all(first.number < second.number for first, second in pairwise(heard))
    assert store.verify() == []


def _last_heard(store: Store, heard: list[Activity]) -> dict[int, int]:
    """Return the last number that a follower has heard of, of each session that is there."""
    last = {item.session_id: item.number for item in heard}
    infos = [*store.sessions(), *store.sessions(trashed=True)]
    return {number_of(store.get(info.id)): last.get(info.id, 0) for info in infos}
