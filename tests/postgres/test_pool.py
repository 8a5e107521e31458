"""Connections are lent in the order of requests, and every wait has a timeout."""

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.pool import Pool
from holdfast.url import parse_url

_LONG = 30.0


@pytest.fixture
def pool(url: str) -> Iterator[Pool]:
    """Lends one link at a time."""
    found = Pool(partial(Connection, parse_conninfo(parse_url(url, {}), "process")), 1)
    yield found
    found.close()


def test_who_came_first_is_served_first(pool: Pool) -> None:
    """Also before the thread that returned the connection and wants it again."""
    served: list[int] = []

    def use(number: int) -> None:
        link = pool.acquire(_LONG)
        served.append(number)
        pool.release(link)

    lent = pool.acquire(_LONG)
    threads = [threading.Thread(target=use, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(pool._waiters) < number:  # noqa: SLF001 - who stands in line
            time.sleep(0.001)
    pool.release(lent)
    use(5)
    for thread in threads:
        thread.join(_LONG)
    assert served == [0, 1, 2, 3, 4, 5]


def test_many_threads_get_by_with_one_link(pool: Pool) -> None:
    """However often others come again, every thread gets its connection."""
    asked: list[object] = []

    def read() -> None:
        for _ in range(20):
            link = pool.acquire(_LONG)
            asked.append(link.execute("version").fetchone())
            pool.release(link)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONG)
    assert len(asked) == 160


def test_a_wait_ends(pool: Pool) -> None:
    """A thread that waits too long gets an error, and the next waiter is served."""
    lent = pool.acquire(_LONG)
    with pytest.raises(StoreUnavailable, match="in use for"):
        pool.acquire(0.05)
    pool.release(lent)
    pool.release(pool.acquire(_LONG))


def test_a_link_that_is_dropped_is_not_missed(pool: Pool) -> None:
    """A connection dropped by an interrupt is never returned."""
    lent = pool.acquire(_LONG)
    del lent
    pool.release(pool.acquire(_LONG))


def test_who_waits_when_the_store_is_closed_is_told(pool: Pool) -> None:
    lent = pool.acquire(_LONG)
    told: list[str] = []

    def wait() -> None:
        with pytest.raises(StoreUnavailable) as raised:
            pool.acquire(_LONG)
        told.append(str(raised.value))

    thread = threading.Thread(target=wait)
    thread.start()
    while not pool._waiters:  # noqa: SLF001 - who stands in line
        time.sleep(0.001)
    pool.close()
    thread.join(_LONG)
    assert told == ["the store is closed; open it again."]
    pool.release(lent)
