"""Erasure step by step: planned exactly, planned again after concurrent writes, proved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Record
from holdfast.clock import SystemClock
from holdfast.context import StoreContext
from holdfast.erasure import Erasure
from holdfast.errors import Damaged, SessionBusy
from holdfast.operations import deletion, erase
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES
from holdfast.session import number_of
from holdfast.storage.ancestry import Segment
from holdfast.storage.memory import MemoryBackend, MemoryTransaction
from holdfast.storage.protocol import Operation, Query, Snapshot
from holdfast.storage.rows import CutResult
from holdfast.transfer import archive
from holdfast.values import Forks, PurgeReport

Plan = Sequence[Segment] | None


class Watched(StoreContext):
    """Records the plans it receives, and the bodies of these messages before and after."""

    def __init__(self, store: holdfast.Store) -> None:
        super().__init__(store.backend, SystemClock())
        self.plans: list[Plan] = []
        self.before: list[bytes] = []
        self.failed: list[BaseException] = []

    def __del__(self) -> None:
        """Leave the backend open: it is the store's."""

    @contextmanager
    def erasing(self, planned: Plan) -> Iterator[None]:
        self.plans.append(planned)
        self.before = self.bodies(planned or ())
        try:
            yield
        except BaseException as error:
            self.failed.append(error)
            raise

    def bodies(self, planned: Sequence[Segment]) -> list[bytes]:
        """Read the bodies at these positions."""
        found = self.backend.read(lambda snapshot: snapshot.messages(planned))
        return [row.body for _, rows in found for row in rows]


@pytest.fixture
def store(store_url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(store_url) as opened:
        yield opened


def family(store: holdfast.Store) -> list[holdfast.Session]:
    """A parent that was rewound, a fork, and a fork of it that has copies."""
    parent = store.session("parent")
    parent.append(*(Message.user(f"parent says {n}") for n in range(6)))
    parent.rewind(4)
    parent.append(Message.user("parent goes on"))
    fork = parent.fork(3)
    fork.append(Message.user("fork says"))
    second = fork.fork()
    second.replace([Message.system("new"), *second.messages()])
    return [parent, fork, second]


def branches(store: holdfast.Store, sessions: Sequence[holdfast.Session]) -> list[int]:
    """The numbers of all their branches."""

    def read(snapshot: Snapshot) -> list[int]:
        return [row.n for one in sessions for row in snapshot.branches(session=number_of(one))]

    return store.backend.read(read)


def purging(
    session: holdfast.Session, forks: Forks
) -> tuple[Query[list[Segment]], Callable[[Plan], Operation[PurgeReport]]]:
    n = number_of(session)
    return (
        deletion.plan_erasure(n, forks=forks),
        lambda planned: deletion.purge(n, session.id, forks=forks, planned=planned),
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("forks", ["keep", "erase"])
def test_what_is_planned_is_what_goes(
    store: holdfast.Store, order: tuple[int, ...], forks: Forks
) -> None:
    """Every body that changes or goes was in the plan, and no other."""
    sessions = family(store)
    watched = Watched(store)
    everything = [Segment(branch, 1, 99, "") for branch in branches(store, sessions)]
    for at in order:
        before = watched.bodies(everything)
        Erasure(watched).write(*purging(sessions[at], forks))
        after = watched.bodies(everything)
        stay = [body for body in after if b'"erased"' not in body]
        planned = [body for body in watched.before if b'"erased"' not in body]
        assert sorted(stay + planned) == sorted(body for body in before if b'"erased"' not in body)
    assert len(watched.plans) == len(order)


def test_the_plan_is_made_again_if_something_came_in_between(store: holdfast.Store) -> None:
    """The write refuses a stale plan, so that nothing goes that was not planned."""
    (session, *_) = family(store)
    watched = Watched(store)
    plan, operation = purging(session, "keep")
    interruptions: list[Callable[[], object]] = [
        lambda: session.append(Message.user("late")),
        session.fork,
    ]

    def interrupted(snapshot: Snapshot) -> list[Segment]:
        found = plan(snapshot)
        if interruptions:
            interruptions.pop(0)()
        return found

    report = Erasure(watched).write(interrupted, operation)
    assert len(watched.plans) == 3
    assert len(watched.failed) == 2
    assert report.messages == sum(
        (span.last or 0) - span.first + 1 for span in watched.plans[-1] or ()
    )


def test_a_copy_that_was_made_in_between_is_planned_as_well(store: holdfast.Store) -> None:
    """One message is erased at all its positions at the time of the write, all of them planned."""
    parent, fork, _ = family(store)
    watched = Watched(store)
    n, id = number_of(parent), parent.messages()[2].id
    plan = erase.plan_erasure(n, id)
    interruptions: list[Callable[[], object]] = [
        lambda: fork.replace([Message.system("new"), *fork.messages()])
    ]

    def interrupted(snapshot: Snapshot) -> list[Segment]:
        found = plan(snapshot)
        if interruptions:
            interruptions.pop()()
        return found

    report = Erasure(watched).write(interrupted, lambda planned: erase.erase(n, id, planned))
    assert [len(planned or ()) for planned in watched.plans] == [2, 3]
    assert report.places == 3
    assert all(b"parent says 2" in body for body in watched.before)


def test_a_session_under_constant_writes_is_erased_all_the_same(store: holdfast.Store) -> None:
    """After some attempts it is erased without an exact plan, which is reported."""
    (session, *_) = family(store)
    watched = Watched(store)
    plan, operation = purging(session, "keep")

    def interrupted(snapshot: Snapshot) -> list[Segment]:
        found = plan(snapshot)
        session.append(Message.user("again"))
        return found

    Erasure(watched).write(interrupted, operation)
    assert watched.plans[-1] is None
    assert all(planned is not None for planned in watched.plans[:-1])
    with pytest.raises(holdfast.errors.SessionNotFound):
        store.get("parent")


def test_a_refusal_leaves_the_block(store: holdfast.Store) -> None:
    """The observer receives the error: nothing was erased."""
    session = store.session("k")
    watched = Watched(store)
    with session.turn() as turn:
        turn.user("working")
        with pytest.raises(SessionBusy):
            Erasure(watched).write(*purging(session, "keep"))
    assert [type(error) for error in watched.failed] == [SessionBusy]


def test_a_draft_that_a_crash_left_does_not_confuse_it(store: holdfast.Store) -> None:
    """The purge makes it a message and erases it in one transaction; no reader ever saw it."""
    session = store.session("k", scope="s")
    turn = session.turn().__enter__()
    turn.user("a")
    reply = turn.stream()
    reply.write("half a reply")
    reply.flush()
    watched = Watched(store)
    plan, _ = purging(session, "keep")
    assert [(span.first, span.last) for span in store.backend.read(plan)] == [(1, 1)]
    turn.cancel("enough")
    Erasure(watched).write(*purging(session, "keep"))
    assert len(watched.plans) == 1


def test_erasing_one_message_is_planned_exactly(store: holdfast.Store) -> None:
    """Each position of it, and nothing else of these branches."""
    parent, _, second = family(store)
    watched = Watched(store)
    n, id = number_of(second), parent.messages()[1].id
    Erasure(watched).write(erase.plan_erasure(n, id), lambda planned: erase.erase(n, id, planned))
    [planned] = watched.plans
    assert planned is not None
    assert [span.first == span.last for span in planned] == [True, True]
    assert all(b"parent says 1" in body for body in watched.before)
    assert all(b'"erased"' in body for body in watched.bodies(planned))


# --------------------------------------------------------------------------------- damaged stores


def damage(path: Path, statement: str, *values: object) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    connection.close()


def test_a_damaged_session_is_spared_and_keeps_no_other(tmp_path: Path) -> None:
    """The plan reports it as spared; the others go."""
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        sessions = [store.create(title=name) for name in ("one", "two", "three")]
        for session in sessions:
            session.append(Message.user("x"))
    damage(path, "UPDATE heads SET crc = crc + 1 WHERE session = ?", number_of(sessions[1]))
    with holdfast.open(path) as store:
        plan = store.retention(idle="0h")
        assert [item.title for item in plan] == ["one", "three"]
        [spared] = plan.spared
        assert spared.why.startswith("it cannot be read: ")
        assert len(store.apply(plan).trashed) == 2


def test_a_session_beside_damage_is_spared(tmp_path: Path) -> None:
    """A session whose forks cannot be read stays; the others go."""
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        parent, other = store.create(title="parent"), store.create(title="other")
        for session in (parent, other):
            session.append(Message.user("x"))
        fork = parent.fork()
    damage(path, "UPDATE sessions SET crc = crc + 1 WHERE n = ?", number_of(fork))
    with holdfast.open(path) as store:
        report = store.apply(store.retention(idle="0h"))
        assert report.trashed == (other.id,)
        assert [(spared.session_id, spared.why) for spared in report.spared] == [
            (parent.id, "it, or a session that comes from it, is damaged")
        ]


def test_what_cannot_be_archived_as_it_is_stays(tmp_path: Path) -> None:
    """A session with a message that cannot be read is not archived, and stays."""
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        sound, broken = store.create(title="sound"), store.create(title="broken")
        for session in (sound, broken):
            session.append(Message.user("x"), Message.user("y"))
        [branch] = [
            segment.branch
            for segment in store.backend.read(
                deletion.plan_erasure(number_of(broken), forks="keep")
            )
        ]
    damage(path, "UPDATE messages SET crc = crc + 1 WHERE place >> 32 = ?", branch)
    with holdfast.open(path) as store:
        report = store.apply(store.retention(idle="0h"), archive=tmp_path / "old.jsonl")
        assert report.trashed == (sound.id,)
        assert [spared.why for spared in report.spared] == [
            "it is damaged and cannot be archived completely"
        ]
        # Without an archive it may go to the trash: nothing is lost there.
        assert store.apply(store.retention(idle="0h")).trashed == (broken.id,)


def test_a_damaged_message_can_be_erased(tmp_path: Path) -> None:
    """An unreadable message may still be secret, so it can be erased."""
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        session = store.session("k")
        session.append(Message.user("a secret of many words"), Message.user("y"))
    damage(path, "UPDATE messages SET crc = crc + 1 WHERE place & 4294967295 = 1")
    with holdfast.open(path) as store:
        session = store.session("k")
        assert session.messages()[0].status == "damaged"
        report = session.erase(1)
        assert (report.places, report.pending) == (1, ())
        assert session.messages()[0].status == "erased"
        assert store.verify() == []
    assert b"secret of many" not in path.read_bytes()


def test_a_message_whose_row_is_missing_is_damage(tmp_path: Path) -> None:
    """It is reported as damage, and nothing is changed."""
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        store.session("k").append(Message.user("x"), Message.user("y"), Message.user("z"))
    damage(path, "DELETE FROM messages WHERE place & 4294967295 = 2")
    with holdfast.open(path) as store, pytest.raises(Damaged, match="message 2 is missing"):
        store.session("k").erase(2)


@pytest.mark.parametrize("cut", [1, 200, -1])
def test_an_archive_that_was_not_written_as_it_should_be_is_found_out(
    tmp_path: Path, cut: int
) -> None:
    """A byte that flipped, or an end that is missing: it is refused, and says what to do."""
    with holdfast.open(tmp_path / "agent.db") as store:
        store.session("k").append(*(Message.user(f"message {n}") for n in range(5)))
        written = store.export(tmp_path / "old.jsonl", redact=None)
    file = Path(written.path)
    assert archive.verify_export(written).sections
    data = bytearray(file.read_bytes())
    if cut < 0:
        data[data.index(b"message 3")] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[:-cut])
    with pytest.raises(Damaged, match="did not pass verification"):
        archive.verify_export(written)


@pytest.mark.parametrize("forks", ["keep", "erase"])
def test_a_purge_of_many_records_is_not_one_transaction(
    monkeypatch: pytest.MonkeyPatch, forks: Forks
) -> None:
    """No transaction erases more than a step, although one message has them all behind it."""
    many = MAX_STEP_MESSAGES * 2 + 1
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(Message.user("a"), *(Record("state", data=n) for n in range(many)))
        session.fork(1)
        session.append(*(Record("state", data=n) for n in range(many)))
        dropped: list[int] = []
        drop_records = MemoryTransaction.drop_records

        def drop(tx: MemoryTransaction, branch: int, numbers: Collection[int]) -> CutResult:
            cut = drop_records(tx, branch, numbers)
            dropped.append(cut.records)
            return cut

        monkeypatch.setattr(MemoryTransaction, "drop_records", drop)
        report = store.purge(session.id, forks=forks)
        assert report.records == sum(dropped) == (many if forks == "keep" else many * 2)
        assert max(dropped) <= MAX_STEP_MESSAGES


def test_a_drop_is_wiped_and_says_what_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, if there was anything to drop."""
    wiped: list[int] = []

    def wipe(_: MemoryBackend) -> tuple[str, ...]:
        wiped.append(1)
        return ("a reader is in the way",)

    monkeypatch.setattr(MemoryBackend, "wipe", wipe)
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(Record("state"), Record("state"))
        assert session.drop(kind="state").pending == ("a reader is in the way",)
        assert session.drop(kind="state").pending == ()
    assert wiped == [1]
