"""Many processes on one server: nothing lost, doubled, reordered or interleaved, whoever is killed.

The same children, records and checker as for files.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message
from holdfast.errors import HoldfastError, OutcomeUnknown, SessionBusy, StorageError
from holdfast.proof import checker
from tests.concurrency.children import Pipe, append, batch, begin, judge
from tests.postgres.conftest import OpenStore, StartChild
from tests.servers import OWNER, OwnServer, as_user
from tests.store_urls import with_options

_WRITERS, _TURNS, _BATCH = 8, 15, 4
_LONG = 60.0


def _append_batches(pipe: Pipe, url: str, folder: Path, name: str, key: str) -> None:
    recorder = checker.Recorder(folder / f"{name}.jsonl", name)
    with holdfast.open(url) as store:
        session = store.session(key)
        pipe.say("ready")
        pipe.hear()
        for number in range(_TURNS):
            append(recorder, session, batch(f"{name}-{number}", _BATCH))
        pipe.say("done")


@pytest.mark.parametrize("shared", [True, False])
def test_eight_processes_lose_and_interleave_nothing(
    open_store: OpenStore, url: str, tmp_path: Path, child: StartChild, shared: bool
) -> None:
    """On one session and on sessions of their own: each turn whole, once, in its writer's order."""
    names = [f"w{number}" for number in range(_WRITERS)]
    keys = ["shared"] * _WRITERS if shared else names
    children = [
        child(_append_batches, url, tmp_path, name, key)
        for name, key in zip(names, keys, strict=True)
    ]
    for step in ("ready", "done"):
        for each in children:
            assert each.hear() == step
        for each in children if step == "ready" else ():
            each.say("go")
    store = open_store()
    sessions = [store.session(key, create=False) for key in dict.fromkeys(keys)]
    judge(tmp_path, *sessions, happened=["overlaps", "acked"] if shared else ["acked"])
    for session in sessions:
        turns = [message.id.rpartition(".")[0] for message in session.messages()]
        pieces = [turns[at : at + _BATCH] for at in range(0, len(turns), _BATCH)]
        assert all(len(set(piece)) == 1 for piece in pieces)
    for name, key in zip(names, keys, strict=True):
        said = [m.id for m in store.session(key).messages() if m.id.startswith(f"{name}-")]
        assert said == [f"{name}-{n}.{part}" for n in range(_TURNS) for part in range(_BATCH)]
    assert store.verify() == []


# --- killed servers -----------------------------------------------------------------------------


def _write_stubbornly(pipe: Pipe, url: str, folder: Path, name: str) -> None:
    """Append until told to stop; what fails is sent again with its ids, until it goes through."""
    recorder = checker.Recorder(folder / f"{name}.jsonl", name)
    with holdfast.open(url) as store:
        session = store.session("shared")
        pipe.say("ready")
        number = 0
        while not pipe.has_news():
            messages = batch(f"{name}-{number}", 2)
            while True:
                write = begin(recorder, session, messages)
                try:
                    head = session.append(*messages)
                except OutcomeUnknown:
                    recorder.unknown(write)
                except StorageError as error:
                    recorder.refused(write, type(error).__name__)
                    time.sleep(0.05)
                else:
                    recorder.acked(write, last=head.seq)
                    break
            number += 1
        pipe.say(number)


def _go_on(folder: Path, writers: int) -> None:
    """Wait until each writer has stored some more, whatever happened before."""
    until, wanted = time.monotonic() + _LONG, _acked(folder)
    for number in range(writers):
        wanted[f"w{number}"] += 3
    while not wanted <= _acked(folder):
        assert time.monotonic() < until, "somebody does not go on"
        time.sleep(0.02)


def _acked(folder: Path) -> Counter[str]:
    events = checker.load(sorted(folder.glob("*.jsonl")))
    return Counter(event.worker for event in events if isinstance(event, checker.Acked))


def _kill_a_backend(server: OwnServer) -> None:
    row = None
    while row is None:
        try:
            with psycopg.connect(server.url, autocommit=True) as admin:
                row = admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' LIMIT 1"
                ).fetchone()
        except psycopg.OperationalError:
            time.sleep(0.05)  # It has not recovered from the last time yet.
    os.kill(row[0], signal.SIGKILL)


def _kill_the_postmaster(server: OwnServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.start_again()


def _stop_at_once(server: OwnServer) -> None:
    os.kill(server.pid, signal.SIGQUIT)
    server.start_again()


@pytest.mark.parametrize(
    "kill",
    [_kill_a_backend, _kill_the_postmaster, pytest.param(_stop_at_once, marks=pytest.mark.long)],
)
def test_a_server_that_is_killed_loses_and_doubles_nothing(
    own: OwnServer, tmp_path: Path, child: StartChild, kill: Callable[[OwnServer], None]
) -> None:
    """Four writers send again what failed; in the end each message is there once."""
    url = with_options(as_user(own.url, OWNER), deadline=4)
    holdfast.open(url).close()
    children = [child(_write_stubbornly, url, tmp_path, f"w{n}") for n in range(4)]
    for each in children:
        assert each.hear() == "ready"
    for _ in range(2):
        _go_on(tmp_path, len(children))
        kill(own)
    _go_on(tmp_path, len(children))
    for each in children:
        each.say("stop")
    written = [each.hear() for each in children]
    with holdfast.open(url) as store:
        session = store.session("shared", create=False)
        judge(tmp_path, session, happened=["overlaps", "acked"])
        assert len(session.messages()) == 2 * sum(written)
        assert store.verify() == []


# --- leases -------------------------------------------------------------------------------------


_ON_ANOTHER_MACHINE = """
UPDATE holdfast.turns SET holder = convert_to(
  jsonb_set(convert_from(holder, 'UTF8')::jsonb, '{boot}', '"another"')::text, 'UTF8')
"""


def _hold(pipe: Pipe, url: str) -> None:
    with holdfast.open(url) as store:
        turn = store.session("s").turn()
        turn.__enter__()
        turn.user("question")
        pipe.say("held")
        pipe.hear()
        try:
            turn.assistant("too late")
        except HoldfastError as error:
            pipe.say(type(error).__name__)
        else:
            pipe.say("went through")


def test_a_holder_that_slept_past_its_lease_writes_nothing_more(
    open_store: OpenStore, url: str, child: StartChild, postgres_admin: psycopg.Connection
) -> None:
    """Whoever waits takes over, and the sleeper is refused when it wakes.

    To another machine time is the server's; by its own clock the sleeper has a lot of time left.
    """
    where = with_options(url, lease=600, deadline=60)
    session = open_store(url=where).session("s")
    holder = child(_hold, where, stoppable=True)
    assert holder.hear() == "held"
    with pytest.raises(SessionBusy):
        session.turn().__enter__()
    holder.stop()
    with pytest.raises(SessionBusy):
        session.turn().__enter__()
    postgres_admin.execute("UPDATE holdfast.turns SET lease_until = 0")
    with pytest.raises(SessionBusy):
        session.turn().__enter__()
    postgres_admin.execute(_ON_ANOTHER_MACHINE)
    with session.turn(wait=60) as turn:
        assert turn.recovered is not None
        turn.assistant("taken over")
    holder.go_on()
    holder.say("wake up")
    assert holder.hear() == "TurnLost"
    assert [m.text for m in session.messages()] == ["question", "taken over"]


# --- following ----------------------------------------------------------------------------------


def _write_in_two_parts(pipe: Pipe, url: str, count: int) -> None:
    with holdfast.open(url) as store:
        for number in range(count):
            store.session(f"s{number % 3}").append(Message.user(str(number)))
            if number == count // 2:
                pipe.say("half")
                pipe.hear()
    pipe.say("done")


def test_a_follower_hears_of_other_processes_and_misses_nothing(
    open_store: OpenStore, url: str, postgres_admin: psycopg.Connection, child: StartChild
) -> None:
    """Announcements wake it; when its connections are cut it catches up: no gap, no repeat."""
    store = open_store(url=with_options(url, application_name="follower"))
    sessions = [store.session(f"s{number}") for number in range(3)]
    follower = sessions[0].follow()
    assert follower.poll() is None
    seen: list[str] = []

    def hear() -> None:
        for item in islice(follower, 20):
            assert isinstance(item, Message)
            seen.append(item.text)

    hears = threading.Thread(target=hear)
    hears.start()
    _await_connections(postgres_admin, 2)  # One that reads, and one that listens.
    writer = child(_write_in_two_parts, url, 60)
    assert writer.hear() == "half"
    _await_connections(postgres_admin, 2)
    cut = postgres_admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'follower' AND datname = current_database()"
    ).fetchall()
    assert len(cut) >= 2
    writer.say("go on")
    assert writer.hear() == "done"
    hears.join(60)
    assert seen == [str(number) for number in range(0, 60, 3)]
    assert follower.poll() is None


def _await_connections(admin: psycopg.Connection, count: int) -> None:
    """Wait until the follower has so many."""
    until = time.monotonic() + 60
    asked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'follower' AND datname = current_database()"
    )
    while (row := admin.execute(asked).fetchone()) and row[0] < count:
        assert time.monotonic() < until, "nobody listens"
        time.sleep(0.02)


def _write_many(pipe: Pipe, url: str, name: str, count: int) -> None:
    with holdfast.open(url, durability="process") as store:
        pipe.say("ready")
        pipe.hear()
        for number in range(count):
            store.session(f"{name}{number % 4}").append(Message.user(str(number)))
    pipe.say("done")


def test_following_a_store_misses_no_session_whatever_commits_first(
    open_store: OpenStore, url: str, child: StartChild
) -> None:
    """Numbers are taken before they are stored, and not in that order; none is passed over."""
    store = open_store()
    writers = [child(_write_many, url, name, 60) for name in "abcd"]
    for each in writers:
        assert each.hear() == "ready"
    for each in writers:
        each.say("go")
    follower, newest, done, numbers = store.follow(), {}, 0, []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        item = follower.poll()
        if item is not None:
            newest[item.session_id] = item.head
            numbers.append(item.number)
        elif done == len(writers):
            break
        else:
            done = sum(each.has_news() for each in writers)
    assert numbers == sorted(set(numbers))
    listed = {info.id: store.get(info.id).head() for info in store.sessions(limit=100)}
    assert newest == listed
    assert len(listed) == 16
