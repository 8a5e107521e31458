"""What the benchmarks on PostgreSQL rest on, as counts: statements, round trips, rows.

They must not grow with what is stored. Time on a server is mostly round trips, so those are counted
where they are made: one whenever all queued statements are sent and waited for.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime

import msgspec
import pytest
from psycopg.pq.abc import PGresult

import holdfast
from bench import material
from holdfast import AsyncStore, File, Message, Record, Session, Store, codec
from holdfast.operations.records import put_store_record
from holdfast.storage.postgres.connection import Connection, PendingResult
from holdfast.storage.postgres.statements import SQL
from holdfast.values import JSON
from tests.postgres.conftest import OpenStore

_Do = Callable[[Session], object]
_SHORT, _LONG = 600, 2_500


class Count:
    """What every connection of this process sent to the server."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.round_trips = 0
        self.rows = 0

    def clear(self) -> None:
        self.statements.clear()
        self.round_trips = self.rows = 0

    @property
    def commits(self) -> int:
        return self.statements.count("COMMIT")

    def seen(self) -> tuple[list[str], int, int]:
        """Return everything that must not depend on how much there is."""
        return list(self.statements), self.round_trips, self.rows


def _is_news(answer: PendingResult) -> bool:
    """True if it only announces a commit: another thread sends that, and no write waits for it."""
    return answer.text == SQL["announce"]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    found = Count()
    send, sync, keep = Connection._send, Connection.sync, Connection._store_result  # noqa: SLF001 - what is counted here

    def counting_send(link: Connection, answer: PendingResult) -> None:
        if not _is_news(answer):
            found.statements.append(answer.text)
        send(link, answer)

    def counting_sync(link: Connection) -> None:
        asked = link._queue  # noqa: SLF001 - as above
        found.round_trips += any(not _is_news(answer) for answer in asked)
        sync(link)

    def counting_rows(link: Connection, answer: PendingResult, result: PGresult) -> None:
        found.rows += 0 if _is_news(answer) else result.ntuples
        keep(link, answer, result)

    monkeypatch.setattr(Connection, "_send", counting_send)
    monkeypatch.setattr(Connection, "sync", counting_sync)
    monkeypatch.setattr(Connection, "_store_result", counting_rows)
    return found


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


def _session(store: Store, length: int) -> Session:
    session = store.session(f"of {length}")
    material.lengthen(store, session, length)
    session.append(*material.turn())
    return session


def test_an_append_is_few_round_trips_whatever_it_holds_and_follows(
    store: Store, open_store: OpenStore, count: Count
) -> None:
    """One message or forty, after a thousand or a few: one to read, one to write and commit."""
    found = []
    for long in (_session(store, _SHORT), _session(store, _LONG)):
        for size in (1, 40):
            session = open_store().get(long.id)  # by a worker without a cached head
            messages = [Message.user("hello") for _ in range(size)]
            count.clear()
            session.append(*messages)
            assert count.commits == 1
            assert count.round_trips == 2
            found.append(count.seen())
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0][1] == found[1][1]


def test_a_file_takes_a_round_trip_only_if_it_is_named_by_its_hash(
    store: Store, open_store: OpenStore, count: Count
) -> None:
    """Data is sent with its message; a file that only names it is looked up before, once."""
    written = store.session("files")
    written.append(Message.user([File(name=str(n), data=b"%d" % n) for n in range(3)]))
    named = [part for part in written.messages()[0].parts if isinstance(part, File)]
    for files, round_trips in (
        ([File(name="f", data=b"new"), File(name="f", data=b"0")], 2),
        (named[:1], 3),
        (named, 5),
    ):
        session = open_store().get(written.id)  # by a worker without a cached head
        count.clear()
        session.append(Message.user(files))
        assert count.round_trips == round_trips


def test_an_append_is_one_journey_for_who_wrote_the_last_ones(store: Store, count: Count) -> None:
    """It sends the head that it expects, and the last messages are cached."""
    used = holdfast.Usage(input=100, output=20)
    batches = {
        "one": [Message.user("hello")],
        "forty": [Message.user("hello") for _ in range(40)],
        "a reply": [Message.assistant("hello", usage=used, model="m")],
        "a file": [Message.user(holdfast.File(data=b"x" * 100_000))],
    }
    found = []
    for session in (_session(store, _SHORT), _session(store, _LONG)):
        for _ in range(2):
            session.append(*material.turn())
        for name, messages in batches.items():
            count.clear()
            session.append(*(msgspec.structs.replace(m, id=f"{name} {m.id}") for m in messages))
            assert (name, count.round_trips, count.commits) == (name, 1, 1)
            found.append(count.seen())
    assert found[: len(batches)] == found[len(batches) :]


def _checkpoint(number: int, after: str | None = None, **files: File) -> Record:
    given = msgspec.UNSET if after is None else after
    return Record("checkpoint", key="thread", data={"step": number}, after=given, files=files)


def test_a_record_is_one_journey_for_who_wrote_the_last_ones(store: Store, count: Count) -> None:
    """With messages, with files, in a turn or alone, however many there are; read in one, too."""
    session = store.session("s")
    found = []
    for _ in range(2):
        for number in range(3):
            session.append(Message.user("hello"), _checkpoint(number))
        batches: list[list[Message | Record]] = [
            [_checkpoint(1)],
            [Message.user("hello"), _checkpoint(2)],
            [_checkpoint(3, state=File(data=b"x" * 5_000))],
        ]
        for entries in batches:
            count.clear()
            session.append(*entries)
            assert (count.round_trips, count.commits) == (1, 1)
            found.append(count.seen())
        with session.turn() as turn:
            for number in range(3):
                turn.record("step", number)
            count.clear()
            turn.record("step", 4)
            assert (count.round_trips, count.commits) == (1, 1)
        count.clear()
        assert session.record("checkpoint", "thread") is not None
        assert count.round_trips == 1
        found.append(count.seen())
        session.append(*(_checkpoint(number) for number in range(500)))
    assert found[:4] == found[4:]


def test_a_record_that_comes_after_another_is_read_once(
    store: Store, open_store: OpenStore, count: Count
) -> None:
    """One round trip to read what it compares, one to write and commit; forks read no more."""
    session = store.session("s")
    session.append(Message.user("hello"), _checkpoint(0))
    fork = session.fork()
    other = open_store()
    for writer in (session, session, fork, other.get(session.id), other.get(fork.id)):
        count.clear()
        found = writer.record("checkpoint", "thread")
        assert found is not None
        assert count.round_trips == 1
        count.clear()
        writer.append(Message.user("hello"), _checkpoint(1, found.id))
        assert (count.round_trips, count.commits) == (2, 1)


def test_a_record_of_the_store_is_two_round_trips(store: Store, count: Count) -> None:
    """Its lock and what it replaces, then the write; three of them in a session's batch as one."""
    last: str | None = None
    for number in range(3):
        count.clear()
        last = store.put_record(Record("app", key="k", data=number, after=last)).id
        assert (count.round_trips, count.commits) == (2, 1)
    session = store.session("s")
    count.clear()
    shared = [Record("app", key=key, data=1, scope="all") for key in "abc"]
    session.append(Message.user("hello"), *shared)
    assert (count.round_trips, count.commits) == (2, 1)
    count.clear()
    found = store.record("app", "k")
    assert found is not None
    assert found.data == 2
    assert count.round_trips == 1


def test_records_of_the_store_that_arrive_together_are_written_one_by_one(
    store: Store, count: Count
) -> None:
    """No transaction is begun that a lock would end at once."""
    held = threading.Event()
    first = store.backend.submit(lambda _: held.wait(60))
    records = [Record("app", key=key, scope=None) for key in "abcde"]
    waiting = [
        store.backend.submit(put_store_record(codec.encode_record(one, datetime.now(UTC))))
        for one in records
    ]
    count.clear()
    held.set()
    for one in (first, *waiting):
        one.result()
    assert (count.round_trips, count.commits) == (1 + 2 * len(waiting), 1 + len(waiting))


def test_resuming_reads_the_same_whatever_the_length(store: Store, count: Count) -> None:
    """A session by its key and its last 50 messages."""
    found = []
    for length in (_SHORT, _LONG):
        _session(store, length)
        count.clear()
        assert len(store.session(f"of {length}").messages(limit=50)) == 50
        found.append(count.seen())
    assert found[0] == found[1]
    assert found[0][1] == 2
    assert found[0][2] < 70


def test_a_message_is_read_by_its_id_whatever_the_length(store: Store, count: Count) -> None:
    """Of a session in two round trips; of all sessions, the session is found before."""
    found = []
    for length in (_SHORT, _LONG):
        session = store.session(f"of {length}")
        material.lengthen(store, session, length)
        name = session.messages(upto=5, limit=1)[0].id
        counted = []
        for read, most in ((session.message, 2), (lambda name: store.message(name)[1], 4)):
            read(name)
            count.clear()
            assert read(name).id == name
            counted.append(count.seen())
            assert count.round_trips <= most
        found.append(counted)
    assert found[0] == found[1]


def test_blobs_are_read_in_one_round_trip(store: Store, count: Count) -> None:
    """However many they are."""
    files = [File(data=b"%d" % number) for number in range(100)]
    store.session("s").append(Message.user(files))
    names = [codec.sha256_hex(file.data or b"") for file in files]
    count.clear()
    assert len(store.blobs(*names)) == 100
    assert count.round_trips == 1


def test_metadata_takes_no_round_trip_more(store: Store, count: Count) -> None:
    """Its marks are sent with the session's row; a list by them is one statement."""
    trips = []
    given: list[dict[str, JSON]] = [{}, {"user": "42", "n": 1}]
    for metadata in given:
        count.clear()
        session = store.create(metadata=metadata)
        session.update(metadata={**metadata, "title": "t"})
        trips.append(count.round_trips)
    assert trips[0] == trips[1]
    count.clear()
    assert [info.id for info in store.sessions(metadata={"user": "42", "n": 1})] == [session.id]
    assert count.round_trips == 1


def test_listing_reads_a_page_whatever_the_number(open_store: OpenStore, count: Count) -> None:
    found = []
    for number in (60, 400):
        store = open_store(tenant=f"with {number}")
        material.add_sessions(store, number)
        count.clear()
        assert len(store.sessions(limit=50)) == 50
        found.append(count.seen())
    assert found[0] == found[1]
    assert found[0][1] == 1


def test_listing_reads_open_turns_together(open_store: OpenStore, count: Count) -> None:
    store = open_store()
    turns = [store.session(f"busy {number}").turn() for number in range(20)]
    with ExitStack() as stack:
        for turn in turns:
            stack.enter_context(turn)
        count.clear()
        assert [info.state for info in store.sessions()] == ["open"] * 20
        assert count.round_trips == 2


_VERBS: dict[str, tuple[_Do, _Do]] = {
    "fork": (lambda s: s.fork(), lambda _: None),
    "fork in the past": (lambda s: s.fork(at=8), lambda _: None),
    "undo": (lambda s: s.undo(), lambda _: None),
    "redo": (lambda s: s.redo(), lambda s: s.undo()),
    "rewind": (lambda s: s.rewind(8), lambda _: None),
    "clear": (lambda s: s.clear(), lambda _: None),
    "exact rewind": (lambda s: s.rewind(7, exact=True), lambda _: None),
    "rewind and update": (lambda s: s.rewind(8, update={"title": "t"}), lambda _: None),
    "replace the end": (lambda s: s.replace([Message.user("x")], keep=s.head()), lambda _: None),
    "amend": (lambda s: s.amend(s.head(), "x"), lambda _: None),
    "summarize": (lambda s: s.summarize("It is about a parcel."), lambda _: None),
    "window": (lambda s: s.window(max_tokens=2_000), lambda _: None),
}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_verb_costs_the_same_whatever_the_length(store: Store, count: Count, verb: str) -> None:
    """Nothing is copied, and nothing is read but what it needs."""
    do, before = _VERBS[verb]
    found = []
    for length in (_SHORT, _LONG):
        session = _session(store, length)
        before(session)
        count.clear()
        do(session)
        found.append(count.seen())
    assert found[0] == found[1]
    assert found[0][1] <= 12


def test_a_pop_is_few_round_trips_whatever_the_length(store: Store, count: Count) -> None:
    """Head, token, ancestry, one message; then all writes. The first has its ancestry cached."""
    found = []
    for length in (_SHORT, _LONG):
        session = _session(store, length)
        for _ in range(3):
            count.clear()
            assert session.pop() is not None
            assert count.commits == 1
            found.append((count.round_trips, count.rows))
    assert found[:3] == found[3:]
    assert all(round_trips <= 5 and rows <= 8 for round_trips, rows in found)


def test_an_append_with_an_update_is_one_to_read_and_one_to_write(
    store: Store, count: Count
) -> None:
    """Its session is read with the head, also by who wrote last: a cached head would not do."""
    session = _session(store, _SHORT)
    for _ in range(2):
        session.append(*material.turn())
    count.clear()
    session.append(Message.user("x"), update={"title": "t"})
    assert (count.round_trips, count.commits) == (2, 1)
    assert session.info().title == "t"


def test_appends_that_arrive_together_are_two_round_trips(store: Store, count: Count) -> None:
    """A hundred tasks with sessions of their own: the reads of each batch are prefetched."""
    sessions = [store.session(f"task {number}") for number in range(100)]

    async def main() -> None:
        twin = AsyncStore(store)
        async_sessions = [await twin.get(session.id) for session in sessions]
        count.clear()
        await asyncio.gather(*(one.append(Message.user("hello")) for one in async_sessions))

    asyncio.run(main())
    store.flush()
    assert count.commits < 10
    assert count.round_trips == 2 * count.commits
    assert all(session.head().seq == 1 for session in sessions)


def test_appends_to_one_session_that_arrive_together(store: Store, count: Count) -> None:
    """They stay in order, and each finds what those before it in the group have stored."""
    session = store.session("one")

    async def main() -> None:
        twin = await AsyncStore(store).get(session.id)
        count.clear()
        names = [str(number % 30) for number in range(60)]
        await asyncio.gather(*(twin.append(Message.user(name, id=name)) for name in names))

    asyncio.run(main())
    assert count.round_trips == 2 * count.commits
    assert [m.id for m in session.messages()] == [str(number) for number in range(30)]


def test_a_turn_is_one_commit_for_each_durable_step(store: Store, count: Count) -> None:
    session = store.session("k")
    count.clear()
    with session.turn() as turn:
        assert count.commits == 1
        turn.user("hello")
        assert count.commits == 2
        with turn.stream() as reply:
            reply.write("it is")
            reply.flush()
        turn.assistant("done")
    steps = {"open": 1, "user": 1, "draft": 1, "close": 1, "assistant": 1, "seal": 1}
    assert count.commits <= sum(steps.values()) + 1
    assert count.round_trips == 2 * count.commits
    assert [m.text for m in holdfast.Session.messages(session)] == ["hello", "it is", "done"]
