"""Followers miss nothing: the snapshot is taken after the horizon was read.

Up to which number nothing is still to come is asked before the snapshot that is read from. Asked
within it, it would be told of a writer that has committed meanwhile that it is through, and what it
wrote would not be there.
"""

import psycopg
import pytest

from holdfast import Message, Store
from holdfast.session import number_of
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.protocol import Snapshot
from holdfast.testing.conformance.fixtures import drain
from tests.postgres.conftest import OpenStore
from tests.postgres.pauses import LONG, await_waiting, in_a_thread, touch, under_way
from tests.store_urls import with_options

_WHOSE = Tenant("default", "holdfast")
_TOUCH = """
WITH put AS (
  UPDATE holdfast.heads h SET activity = next.activity, recency = next.recency
  FROM holdfast.heads before
    CROSS JOIN LATERAL holdfast.take_activity(
      %s, before.activity, before.activity, before.recency) AS next
  WHERE h.session = %s AND before.session = h.session
  RETURNING h.session, next.activity, next.recency
)
UPDATE holdfast.recent r SET recency = put.recency FROM put WHERE r.session = put.session
RETURNING put.activity
"""


@pytest.fixture
def store(open_store: OpenStore, url: str) -> Store:
    """One whose users have time."""
    return open_store(url=with_options(url, deadline=2 * LONG))


def test_a_write_that_commits_while_a_follower_looks_is_not_passed_over(
    store: Store, url: str, postgres_database: str, postgres_admin: psycopg.Connection
) -> None:
    """It has a lower number than one that is stored, and commits when a look has begun.

    Who begins has its snapshot first and then waits for the table that says the format: there it
    is held, until the write is through. So the write is one that has no need of that table.
    """
    low, high = store.session("low"), store.session("high")
    follower = store.follow(drain(store.follow())[-1].number)
    with psycopg.connect(url) as writer, psycopg.connect(postgres_database) as keeper:
        writer.execute("SELECT set_config('holdfast.tenant', %s, true)", (str(_WHOSE.mark),))
        taken = writer.execute(_TOUCH, (_WHOSE.activity_lock, number_of(low))).fetchone()
        high.append(Message.user("x"))
        keeper.execute("LOCK TABLE holdfast.meta IN ACCESS EXCLUSIVE MODE")
        told = in_a_thread(lambda: drain(follower))
        await_waiting(postgres_admin)
        writer.commit()
        keeper.commit()
        heard = [*told(), *drain(follower)]
    assert [item.session_id for item in heard] == [low.id, high.id]
    assert taken == (heard[0].number,)


def test_a_query_that_asks_late_is_asked_again(store: Store) -> None:
    """What it has seen until then is older than the answer; so nothing of it counts."""
    low, high = store.session("low"), store.session("high")
    since = drain(store.follow())[-1].number
    seen: list[bool] = []
    with under_way(store, touch(low)) as commit:
        high.append(Message.user("x"))

        def query(snapshot: Snapshot) -> list[str]:
            seen.append(snapshot.find_session(id=low.id) is not None)
            commit()
            return [id for _, id, *_ in snapshot.activity_after(since, 10)]

        assert store.backend.read(query) == [low.id, high.id]
    assert seen == [True, True]
