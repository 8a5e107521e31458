"""Whatever happens to a connection, a write is stored once, or not, or said to be unknown."""

import asyncio

import psycopg
import pytest

from holdfast import Message
from holdfast.aio import AsyncStore
from holdfast.errors import OutcomeUnknown, StorageError, StoreUnavailable
from tests.postgres.conftest import OpenStore, through
from tests.postgres.pauses import Pauses
from tests.postgres.proxy import Failure, Proxy

_FAILURES: list[Failure] = ["before the commit", "after the commit", "no answer", "late"]
_CUT_ALL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'holdfast' AND datname = current_database()
"""
_HASTY = {"deadline": 60, "answer": 0.5, "idle": 1, "connect": 30}


def _texts(open_store: OpenStore) -> list[str]:
    """Read what is stored, past the proxy."""
    store = open_store()
    assert store.verify() == []
    return [m.text for m in store.session("s").messages()]


@pytest.mark.parametrize("failure", _FAILURES)
def test_a_write_whose_connection_fails_is_stored_once(
    open_store: OpenStore, proxy: Proxy, url: str, failure: Failure
) -> None:
    """It is tried again until it is known to be stored; those before and behind it as well."""
    session = open_store(url=through(proxy, url, **_HASTY)).session("s")
    session.append(Message.user("0"))
    proxy.failures.append(failure)
    session.append(Message.user("1"))
    session.append(Message.user("2"))
    assert proxy.happened == [failure]
    assert _texts(open_store) == ["0", "1", "2"]


@pytest.mark.parametrize("failure", _FAILURES)
def test_writes_handed_over_together_are_stored_once(
    open_store: OpenStore, proxy: Proxy, url: str, failure: Failure
) -> None:
    """When their common commit fails each gets its true outcome, and their order stays."""
    store = open_store(url=through(proxy, url, **_HASTY))
    store.session("s").append(Message.user("0"))

    async def work() -> None:
        session = await AsyncStore(store).session("s")
        proxy.failures.append(failure)
        names = [str(number) for number in range(1, 40)]
        heads = await asyncio.gather(*(session.append(Message.user(name)) for name in names))
        assert [head.seq for head in heads] == list(range(2, 41))

    asyncio.run(work())
    assert proxy.happened == [failure]
    assert _texts(open_store) == [str(number) for number in range(40)]


@pytest.mark.parametrize("failure", ["before the commit", "after the commit"])
def test_a_write_that_never_gets_through_ends_and_can_be_retried(
    open_store: OpenStore,
    proxy: Proxy,
    url: str,
    failure: Failure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody hangs: by the deadline it is said, and with its id it can be tried later, once.

    The server tells what became of a commit, so one that never arrived is known not to be stored.
    One that did would be confirmed by another commit, which fails as well.
    """
    arrives = failure == "after the commit"
    said: type[StorageError] = OutcomeUnknown if arrives else StoreUnavailable
    pauses = Pauses(monkeypatch)
    session = open_store(url=through(proxy, url, deadline=4, answer=30, connect=30)).session("s")
    session.append(Message.user("0"))
    message = Message.user("1", id="once")
    proxy.failures.extend([failure] * 1000)
    before = pauses.made
    with pytest.raises(said) as raised:
        session.append(message)
    assert pauses.made - before <= 4
    assert type(raised.value) is said
    assert ("nothing was stored" in str(raised.value)) == (not arrives)
    assert len(proxy.happened) > 1
    proxy.failures.clear()
    assert _texts(open_store) == (["0", "1"] if arrives else ["0"])
    session.append(message)
    session.append(message)
    assert _texts(open_store) == ["0", "1"]


def test_a_server_that_is_away_stores_nothing_and_says_so(
    open_store: OpenStore, proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure to connect leaves nothing in doubt: nothing was stored, and nothing was read."""
    store = open_store(url=through(proxy, url, answer=30, connect=30, deadline=3))
    session = store.session("s")
    session.append(Message.user("0"))
    proxy.stop()
    Pauses(monkeypatch)
    monkeypatch.setattr(store.backend, "deadline", 0.1)
    with pytest.raises(StoreUnavailable, match="nothing was stored") as raised:
        session.append(Message.user("1"))
    assert isinstance(raised.value.__cause__, psycopg.Error)
    with pytest.raises(StoreUnavailable):
        session.messages()
    assert _texts(open_store) == ["0"]


def test_reads_outlive_lost_connections(
    open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """Connections that the server has closed are replaced."""
    store = open_store()
    session = store.session("s")
    session.append(Message.user("0"))
    postgres_admin.execute(_CUT_ALL)
    assert [m.text for m in session.messages()] == ["0"]
    postgres_admin.execute(_CUT_ALL)
    session.append(Message.user("1"))
    assert _texts(open_store) == ["0", "1"]
