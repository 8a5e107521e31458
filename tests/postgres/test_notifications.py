"""A notification is a hint: a write that was not announced is noticed a little later.

A follower also reads by itself now and then. That is not what is tested here, so these wait for
the backend to say that something was written.
"""

import os
import signal

import psycopg
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.storage.postgres.watcher import NotificationWatcher
from holdfast.testing.conformance.fixtures import drain
from tests.concurrency.children import Pipe
from tests.postgres.conftest import WHOSE, OpenStore, StartChild, told
from tests.postgres.pauses import LONG, await_waiting, in_a_thread, touch, under_way
from tests.store_urls import with_options

_QUIET = 0.5
_CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'follower' AND datname = current_database()
"""


def _how_far(store: Store) -> int:
    """Return the number of changes once a follower has noticed all."""
    return drain(store.follow())[-1].number


def _once_it_is_quiet(store: Store) -> int:
    """Wait until nothing more is noticed; by then the listener has polled."""
    seen = store.backend.wait(-1, 0)
    while (now := store.backend.wait(seen, _QUIET)) != seen:
        seen = now
    return seen


def test_a_write_that_began_before_anybody_listened_is_noticed(
    open_store: OpenStore, outsider: psycopg.Connection
) -> None:
    """Its writer found no listener."""
    writer, reader = open_store(), open_store()
    session = writer.session("k")
    since = _how_far(reader)
    with under_way(writer, touch(session)):
        seen = reader.backend.wait(-1, 0)
    writer.close()
    assert reader.backend.wait(seen, LONG) != seen
    assert next(reader.follow(since)).session_id == session.id
    assert told(outsider) == 0


def _die_before_announcing(pipe: Pipe, url: str) -> None:
    def die(_: NotificationWatcher, *, heard: bool = True) -> None:
        assert heard  # The listener was known, and would have been notified.
        os.kill(os.getpid(), signal.SIGKILL)

    with holdfast.open(url) as store:
        session = store.session("k")
        pipe.say("ready")
        pipe.hear()
        pytest.MonkeyPatch().setattr(NotificationWatcher, "announce", die)
        session.append(Message.user("the last words"))


def test_the_last_words_of_a_writer_that_died_are_noticed(
    open_store: OpenStore, url: str, child: StartChild, outsider: psycopg.Connection
) -> None:
    """Its process was killed after the commit, before notifying; the listener had polled before."""
    reader = open_store()
    session = reader.session("k")
    writer = child(_die_before_announcing, url)
    assert writer.hear() == "ready"
    told(outsider)
    seen = _once_it_is_quiet(reader)
    writer.say("go")
    assert reader.backend.wait(seen, LONG) != seen
    assert next(session.follow()) == session.messages()[0]
    assert session.messages()[0].text == "the last words"
    assert told(outsider) == 0


def test_what_was_written_while_a_listener_was_cut_off_is_noticed(
    open_store: OpenStore, url: str, postgres_admin: psycopg.Connection
) -> None:
    """It was not announced, and a listener that polls from then on sees no change."""
    reader = open_store(url=with_options(url, application_name="follower", deadline=2 * LONG))
    writer = open_store()
    session = writer.session("k")
    _once_it_is_quiet(reader)
    door = WHOSE.write_lock ^ 1
    with psycopg.connect(url, autocommit=True) as keeper:
        # It stands before the listener that comes back, and so keeps that out.
        locked = in_a_thread(lambda: keeper.execute("SELECT pg_advisory_lock(%s)", (door,)))
        await_waiting(postgres_admin)
        postgres_admin.execute(_CUT)
        locked()
        await_waiting(postgres_admin)
        seen = reader.backend.wait(-1, 0)
        session.append(Message.user("unheard"))
        writer.close()
        assert reader.backend.wait(seen, 0) == seen
    assert reader.backend.wait(seen, LONG) != seen
    assert [message.text for message in reader.session("k").messages()] == ["unheard"]


def test_what_was_written_last_is_announced_when_a_store_is_closed(
    open_store: OpenStore, outsider: psycopg.Connection
) -> None:
    """However soon that is: others hear of it at once."""
    listening = open_store()
    listening.backend.wait(-1, 0)
    writer = open_store()
    session = writer.session("k")
    next(outsider.notifies(timeout=LONG, stop_after=1))
    session.append(Message.user("goodbye"))
    writer.close()
    assert told(outsider) == 1
