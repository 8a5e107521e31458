"""A copy of a store is identical to it, from any backend to any, also when repeated."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import File, Message, Store, ToolCall, Turn, Usage, codec, open_async
from holdfast.errors import Diverged, HoldfastError, Invalid, ReadOnly
from holdfast.storage.memory import MemoryBackend, MemoryTables
from holdfast.storage.protocol import Backend, Operation, PendingWrite, Query, Snapshot
from holdfast.values import CopyReport, Goal, Holder
from tests.model.strategies import names
from tests.store_urls import KINDS, Kind, place, superuser
from tests.transfer.builders import numbers, steps, take
from tests.transfer.views import lines_of, listed, shown

T = TypeVar("T")
# From a file to a file, to a server, back, and from one server to another.
_WAYS: list[tuple[Kind, Kind]] = [
    ("sqlite", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("postgres", "postgres"),
]


@contextlib.contextmanager
def _opened(kind: Kind, folder: Path) -> Iterator[Store]:
    with place(kind, folder) as url, holdfast.open(url, durability="process") as store:
        yield store


@pytest.fixture(params=_WAYS[1:3], ids="-".join)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two empty stores that other processes can open, too."""
    first, second = request.param
    with _opened(first, tmp_path) as source, _opened(second, tmp_path) as target:
        yield source, target


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _lines(store: Store, folder: Path) -> list[bytes]:
    """Return the lines of an export; a turn that is open must be open in the copy, too."""
    store.export(folder / "out.jsonl", redact=None, overwrite=True)
    return lines_of(folder / "out.jsonl")


def _brought(report: CopyReport) -> tuple[int, int, int]:
    return report.added, report.renewed, report.unchanged


# --------------------------------------------------------------------------------- random stores

Steps = list[tuple[str, int, Any]]


def _take_all(store: Store, taken: Steps) -> None:
    for verb, which, what in taken:
        with contextlib.suppress(HoldfastError, ZeroDivisionError):
            take(
                store, verb, which, what
            )  # A refusal, or a store without sessions: both can be copied.


def _hold(store: Store, which: int, text: str) -> Turn | None:
    """Open a turn, and stream part of its reply."""
    found = listed(store)
    if not found:
        return None
    turn = store.get(found[which % len(found)].id).turn(model="m").__enter__()
    turn.user("go on")
    turn.assistant(tool_calls=[ToolCall("h", "look")])
    turn.tool_started("h")
    draft = turn.stream()
    draft.write(text)
    draft.flush()
    return turn


@settings(max_examples=16)
@given(st.sampled_from(KINDS), st.sampled_from(KINDS), names, steps, steps)
def test_a_copy_is_the_same_store_and_so_is_a_second_one(
    first: Kind, second: Kind, name: str, before: Steps, after: Steps
) -> None:
    """Everything the API shows is equal; later changes are copied, or the copy is refused."""
    with _folder() as folder, _opened(first, folder) as source, _opened(second, folder) as target:
        source.create(key=name, title=name, scope=name, cwd=name, agent=name, model=name)
        _take_all(source, before)
        report = source.copy(target)
        assert report.same
        assert _brought(report) == (report.source.sessions, 0, 0)
        assert shown(target) == shown(source)
        assert target.verify() == []
        again = source.copy(target)
        assert again.same
        assert _brought(again) == (0, 0, report.source.sessions)
        there = shown(target)
        _take_all(source, after)
        purged = any(verb == "purge" for verb, _, _ in after)
        try:
            later = source.copy(target)
        except Diverged:
            assert purged, "only what is erased is not brought"
            assert shown(target) == there
            return
        assert later.same
        assert later.others == 0 or purged
        assert target.verify() == []
        if not purged:
            assert shown(target) == shown(source)
            assert _lines(target, folder) == _lines(source, folder)


@settings(max_examples=12)
@given(
    first=st.sampled_from(KINDS),
    second=st.sampled_from(KINDS),
    before=steps,
    which=numbers,
    ends=st.booleans(),
    after=steps,
)
def test_open_turns_come_as_they_are_and_go_on(
    *, first: Kind, second: Kind, before: Steps, which: int, ends: bool, after: Steps
) -> None:
    """Drafts and ledgers are copied; a second copy brings later writes, or the end of the turn."""
    with _folder() as folder, _opened(first, folder) as source, _opened(second, folder) as target:
        source.create(key="k").append(Message.user("hello"))
        _take_all(source, before)
        turn = _hold(source, which, "it is")
        report = source.copy(target)
        assert report.same
        assert len(report.interrupted) == (turn is not None)
        assert _lines(target, folder) == _lines(source, folder)
        if turn is None:
            return
        turn.tool("h", "found")
        if ends:
            turn.cancel()
        _take_all(source, [step for step in after if step[0] != "purge"])
        again = source.copy(target)
        assert again.same
        assert again.renewed >= 1
        assert len(again.interrupted) == (not ends)
        assert _lines(target, folder) == _lines(source, folder)
        assert target.verify() == []
        (mine,) = [s for s in _all_ids(target) if s in report.interrupted]
        assert target.get(mine).info().state == ("done" if ends else "interrupted")


def _all_ids(store: Store) -> list[str]:
    return [info.id for info in (*listed(store), *listed(store, trashed=True))]


# ------------------------------------------------------------------------------- what is copied


@pytest.fixture
def pair(source: Store, target: Store) -> tuple[Store, Store]:
    """A store and its copy."""
    assert source.copy(target).same
    return source, target


def test_counts_and_hashes_are_told(source: Store, target: Store) -> None:
    """For both stores; any difference changes the hash."""
    report = source.copy(target)
    assert report.same
    assert report.source == report.target
    counts = report.source
    assert (counts.sessions, counts.messages, counts.turns) == (2, 8, 1)
    assert (counts.queued, counts.blobs, counts.records, counts.store_records) == (1, 1, 0, 0)
    source.session("talk").update(title="Another")
    assert source.copy(target).source.sha256 != report.source.sha256


def test_who_held_a_turn_is_kept(pair: tuple[Store, Store]) -> None:
    """An export omits the holder; a copy keeps it."""
    turns = [store.session("talk").turns() for store in pair]
    assert turns[0] == turns[1]
    holders = [store.backend.read(_holder_of_talk) for store in pair]
    assert holders[0] == holders[1]
    assert holders[0].pid > 0


def _holder_of_talk(snapshot: Snapshot) -> Holder:
    row = snapshot.find_session(key="talk")
    assert row is not None
    turn = snapshot.turn(row.n, 1)
    assert turn is not None
    return turn.holder


def _take_queued(store: Store) -> None:
    with store.session("talk").turn(model="m2") as turn:
        turn.take_queued()
        turn.assistant("done", usage=Usage(5, 6))


def _trash_and_begin_anew(store: Store) -> None:
    store.trash("talk")
    store.session("talk").append(Message.user("another talk"))


def _swap_keys(store: Store) -> None:
    """Move keys to newer sessions, and to a session that existed when another had the key."""
    there = store.create(title="there")
    store.trash("talk")
    store.trash("fork")
    store.create(key="fork").append(Message.user("has the key of another"))
    store.create(key="talk").append(Message.user("so has this one"))
    there.append(Message.user("x"))


_CHANGES: dict[str, Callable[[Store], object]] = {
    "append": lambda s: s.session("talk").append(Message.user("seven")),
    "undo": lambda s: s.session("talk").undo(),
    "clear": lambda s: s.session("talk").clear(),
    "fork": lambda s: s.session("talk").fork(2, key="another"),
    "update": lambda s: s.session("talk").update(title="T", pinned=True, goal=Goal("g")),
    "enqueue": lambda s: s.session("talk").enqueue(Message.user([File(data=b"more")])),
    "take queued": _take_queued,
    "summarize": lambda s: s.session("talk").summarize("so far"),
    "trash": lambda s: s.trash("talk"),
    "trash and begin anew": _trash_and_begin_anew,
    "continue": lambda s: s.create(parent="talk", key="run").append(Message.user("on")),
    "begin": lambda s: s.session("x").append(Message.assistant("x", usage=Usage(1), model="m")),
    "swap keys": _swap_keys,
    "what cost nothing": lambda s: s.session("talk").append(
        Message.assistant("x", cost=Decimal(0))
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_whatever_is_done_is_brought_by_the_next_copy(
    pair: tuple[Store, Store], change: str
) -> None:
    """The next copy has nothing to do."""
    source, target = pair
    _CHANGES[change](source)
    report = source.copy(target)
    assert report.same
    assert report.added + report.renewed > 0
    assert shown(target) == shown(source)
    assert target.verify() == []
    last = target.backend.wait(-1, 0)
    assert _brought(source.copy(target)) == (0, 0, len(_all_ids(source)))
    assert target.backend.wait(-1, 0) == last, "a copy that brings nothing writes nothing"


def test_lists_are_in_the_order_of_the_source(source: Store, target: Store) -> None:
    """Also when older sessions were copied later."""
    first = source.session("first")
    first.append(Message.user("1"))
    source.copy(target)
    source.session("talk").append(Message.user("again"))
    source.session("last").append(Message.user("2"))
    first.update(title="changed, and still the oldest")
    assert source.copy(target).same
    assert [i.id for i in listed(target)] == [i.id for i in listed(source)]


def test_an_open_turn_is_nobody_s_in_the_target(source: Store, target: Store) -> None:
    """It can be recovered there as after a crash, while its holder continues in the source."""
    turn = source.session("talk").turn().__enter__()
    turn.user("go")
    draft = turn.stream()
    draft.write("half of a repl")
    draft.flush()
    assert source.copy(target).same
    there = target.session("talk")
    assert there.interrupted
    recovered = there.recover()
    assert recovered is not None
    assert there.messages()[-1].text == "half of a repl"
    assert there.messages()[-1].status == "partial"
    draft.write("y")
    draft.close()
    turn.__exit__(None, None, None)
    assert source.session("talk").messages()[-1].text == "half of a reply"
    with pytest.raises(Diverged):  # The target has diverged.
        source.copy(target)


def test_other_sessions_of_the_target_stay(source: Store, target: Store) -> None:
    """They are counted; forks of copied sessions stay, too."""
    mine = target.session("mine")
    mine.append(Message.user("own"))
    assert source.copy(target).others == 1
    fork = target.session("talk").fork(4, key="a fork here")
    fork.append(Message.user("forked here"))
    source.session("talk").append(Message.user("went on"))
    report = source.copy(target)
    assert (report.same, report.others, report.renewed) == (True, 2, 1)
    assert [m.text for m in fork.messages()] == ["one", "two", "three", "four", "forked here"]
    assert [m.text for m in mine.messages()] == ["own"]
    assert target.session("talk").messages()[-1].text == "went on"
    assert target.verify() == []


@pytest.mark.parametrize(("first", "second"), _WAYS)
def test_only_the_tenant_of_the_store_is_copied(first: Kind, second: Kind, tmp_path: Path) -> None:
    """Into the tenant of the target."""
    with place(first, tmp_path) as a, place(second, tmp_path) as b:
        with holdfast.open(a, tenant="one") as one, holdfast.open(a, tenant="two") as two:
            one.session("k").append(Message.user("of one"))
            two.session("k").append(Message.user("of two"))
            assert one.copy(b).source.sessions == 1
        with holdfast.open(b, tenant="one") as one, holdfast.open(b, tenant="two") as two:
            assert [m.text for m in one.session("k").messages()] == ["of one"]
            assert listed(two) == []
            assert one.copy(two).same
            assert [m.text for m in two.session("k").messages()] == ["of one"]


def test_a_store_of_many_families_comes_in_batches(target: Store) -> None:
    """Small families share a transaction, so that a thousand do not take a thousand syncs."""
    with holdfast.open("memory:") as source:
        for n in range(120):
            source.session(f"k{n}").append(Message.user("x"))
        told: list[tuple[int, int]] = []
        calls: list[str] = []
        with _watched(target.backend, calls.append):
            report = source.copy(target, progress=lambda done, total: told.append((done, total)))
        assert (report.same, report.added) == (True, 120)
        assert calls.count("submit") == 2
        assert told[-1] == (360, 360)


def test_an_empty_store_is_soon_copied(target: Store) -> None:
    """The copy is empty, too."""
    with holdfast.open("memory:") as source:
        report = source.copy(target)
        assert (report.same, report.source.sessions) == (True, 0)


def test_two_copies_at_once_are_one(shared_url: str) -> None:
    """The first process copies a family, the other one finds it in the target."""
    with (
        holdfast.open("memory:") as source,
        holdfast.open(shared_url, durability="process") as one,
        holdfast.open(shared_url, durability="process") as two,
    ):
        for n in range(20):
            source.session(f"k{n}").append(*[Message.user("x") for _ in range(300)])
        twins: list[CopyReport] = []
        first = _meanwhile(source, one, 10, lambda: twins.append(source.copy(two)))
        assert [first.same, twins[0].same] == [True, True]
        assert 0 < first.added < 20
        assert first.added + twins[0].added == 20
        assert shown(one) == shown(source)


def test_the_async_twin(tmp_path: Path) -> None:
    """It accepts a path, a URL, or another store."""

    async def work() -> None:
        async with open_async("memory:") as source, open_async("memory:") as target:
            await (await source.session("k")).append(Message.user("x"))
            assert (await source.copy(tmp_path / "b.db")).same
            assert (await source.copy(target)).same
            assert (await target.copy(f"sqlite:///{tmp_path}/b.db")).unchanged == 1

    asyncio.run(work())


# ------------------------------------------------------------------------------- what is refused


def _take_turn(store: Store, model: str) -> None:
    with store.session("talk").turn(model=model):
        pass


def _append(store: Store, text: str) -> None:
    store.session("talk").append(Message.user(text))


def _enqueue(store: Store, text: str) -> None:
    store.session("talk").enqueue(text)


def _nothing(_: Store) -> None:
    pass


_Change = Callable[[Store], object]
# A change in the target, a later change in the source, and the expected reason.
_DIVERGED: dict[str, tuple[_Change, _Change, str]] = {
    "a message": (
        lambda target: _append(target, "mine"),
        lambda source: _take_turn(source, "theirs"),
        "it has messages that the source does not have",
    ),
    "a movement": (
        lambda target: target.session("talk").undo(),
        lambda source: _take_turn(source, "theirs"),
        "its branches differ from those in the source",
    ),
    "a purge": (
        lambda target: target.purge("talk"),
        lambda source: _take_turn(source, "theirs"),
        "it was purged in the target",
    ),
    "an erased message": (
        lambda target: target.session("talk").erase(2),
        lambda source: _take_turn(source, "theirs"),
        "message 2 differs from the one in the source",
    ),
    "another turn of the same number": (
        lambda target: _take_turn(target, "mine"),
        lambda source: _take_turn(source, "theirs"),
        "turn 2 differs from the one in the source",
    ),
    "an open turn of the same number": (
        lambda target: target.session("talk").turn(model="mine").__enter__(),
        lambda source: _take_turn(source, "theirs"),
        "turn 2 differs from the one in the source",
    ),
    "one turn more": (
        lambda target: _take_turn(target, "mine"),
        lambda source: _append(source, "later than that turn"),
        "it was written to in the target",
    ),
    "a later write": (
        lambda target: _enqueue(target, "mine"),
        _nothing,
        "it was written to in the target",
    ),
    "input that waits": (
        lambda target: _enqueue(target, "mine"),
        lambda source: _append(source, "later than that input"),
        "it has queued input that the source does not have",
    ),
}


@pytest.mark.parametrize("what", _DIVERGED)
def test_a_target_that_went_its_own_way_is_left_alone(pair: tuple[Store, Store], what: str) -> None:
    """Nothing is written for any session, and the error has the reason for each session."""
    source, target = pair
    talk = source.session("talk").id
    in_target, in_source, why = _DIVERGED[what]
    in_target(target)
    source.session("new").append(Message.user("not yet there"))
    in_source(source)
    there, last = shown(target), target.backend.wait(-1, 0)
    with pytest.raises(Diverged) as caught:
        source.copy(target)
    assert caught.value.reasons == {talk: why}
    assert shown(target) == there
    assert target.backend.wait(-1, 0) == last


@pytest.mark.parametrize(
    ("erase", "why"),
    [
        (lambda s: s.session("talk").erase(2), "message 2 was erased in the source"),
        (lambda s: s.purge("talk"), "it was purged in the source"),
    ],
)
def test_what_was_erased_since_is_erased_there_by_hand(
    pair: tuple[Store, Store], erase: Callable[[Store], object], why: str
) -> None:
    """A copy erases nothing: the error says what to do, and then the copy succeeds."""
    source, target = pair
    erase(source)
    there = shown(target)
    with pytest.raises(Diverged) as caught:
        source.copy(target)
    assert any(reason.startswith(why) for reason in caught.value.reasons.values())
    assert shown(target) == there
    erase(target)
    assert source.copy(target).same
    assert shown(target) == shown(source)


def test_a_key_that_another_session_has_there_is_refused(source: Store, target: Store) -> None:
    """Keys are preserved, so this session cannot be copied."""
    target.session("talk").append(Message.user("mine"))
    there = shown(target)
    with pytest.raises(Diverged, match="has its key in the target"):
        source.copy(target)
    assert shown(target) == there


def test_another_session_under_the_same_id(source: Store, target: Store, tmp_path: Path) -> None:
    """Sessions with different creation times are different, even with equal content."""
    source.copy(target)
    assert isinstance(source.backend, MemoryBackend)
    rows = source.backend.tables.sessions
    for n, row in rows.items():
        rows[n] = msgspec.structs.replace(row, created_at=row.created_at - 1)
    with pytest.raises(Diverged, match="it is a different session with the same id"):
        source.copy(target)


def test_a_store_is_not_copied_into_itself(source: Store) -> None:
    """It says so, and does nothing."""
    with pytest.raises(Invalid, match="into itself"):
        source.copy(source)


def test_a_target_that_is_only_read_is_refused(source: Store, shared_url: str) -> None:
    """It says so, and does nothing."""
    holdfast.open(shared_url).close()
    with (
        holdfast.open(shared_url, readonly=True) as target,
        pytest.raises(ReadOnly, match="nothing was copied"),
    ):
        source.copy(target)


# ------------------------------------------------------------------------------------ what changes


@contextlib.contextmanager
def _watched(backend: Backend, told: Callable[[str], object]) -> Iterator[None]:
    """Call a function before each read from or write to this backend."""
    read, submit = backend.read, backend.submit

    def asked(query: Query[T]) -> T:
        told("read")
        return read(query)

    def submitted(verb: Operation[T]) -> PendingWrite[T]:
        told("submit")
        return submit(verb)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "read", asked)
        patch.setattr(backend, "submit", submitted)
        yield


def _meanwhile(source: Store, target: Store, at: int, change: Callable[[], object]) -> CopyReport:
    """Copy, and make a change at the `at`-th read from or write to the target."""
    calls: list[str] = []

    def told(call: str) -> None:
        calls.append(call)
        if len(calls) == at:
            change()

    with _watched(target.backend, told):
        return source.copy(target)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_source_in_use_is_copied_as_it_was_and_its_changes_are_named(
    stores: tuple[Store, Store], at: int
) -> None:
    """Whenever it changes, each session is copied in one of its states; a second copy is equal."""
    source, target = stores
    talk = source.session("talk")
    talk.append(*[Message.user(str(n)) for n in range(220)])  # More than a page.
    other = source.session("other")
    other.append(Message.user("x"))

    def change() -> None:
        talk.append(Message.user("meanwhile"))
        other.update(title="a title alone")
        source.session("new").append(Message.user("y"))

    report = _meanwhile(source, target, at, change)
    new = source.session("new").id
    assert report.differs == ()
    assert report.damage == ()
    assert set(report.changed) <= {talk.id, other.id, new}
    # A change after the comparison is not reported: the copy is valid as of the comparison.
    assert (new in report.changed) == (at < 5)
    assert report.same == (at >= 5)
    texts = [m.text for m in target.session("talk", create=False).messages()]
    assert texts[:220] == [str(n) for n in range(220)]
    assert texts[220:] == (["meanwhile"] if at < 3 else [])
    assert target.verify() == []
    again = source.copy(target)
    assert again.same
    assert again.added + again.renewed == (len(report.changed) or 3)
    assert shown(target) == shown(source)


def test_all_moments_of_a_change_were_met(stores: tuple[Store, Store]) -> None:
    """The test above makes its change at every call: this one counts the calls."""
    source, target = stores
    source.session("talk").append(Message.user("x"))
    calls: list[str] = []
    with _watched(target.backend, calls.append):
        source.copy(target)
    assert calls == ["read", "read", "submit", "read", "read", "read"]


def test_a_target_that_is_written_to_meanwhile_is_found_out(source: Store, target: Store) -> None:
    """A write to the copy before the comparison is reported as a difference."""
    source.copy(target)
    source.session("new").append(Message.user("x"))

    def change() -> None:
        target.session("talk").update(title="mine")

    seen = [_meanwhile(source, target, at, change).differs for at in (4, 5, 6)]
    assert any(seen)
    assert set().union(*seen) <= {source.session("talk").id}


# ------------------------------------------------------------------------------- what is compared


def _change_one(rows: dict[Any, Any], **fields: object) -> None:
    """Change a column in the first row of a table."""
    key, row = next(iter(rows.items()))
    rows[key] = msgspec.structs.replace(row, **fields)


def _change_message(tables: MemoryTables) -> None:
    """Change the content of a message, and update its checksum."""
    rows = next(iter(tables.messages.values()))
    seq, row = next(iter(rows.items()))
    body = row.body.replace(b"one", b"two")
    crc = codec.checksum(row.id, row.turn, body)
    rows[seq] = msgspec.structs.replace(row, body=body, crc=crc)


_TAMPERED: dict[str, Callable[[MemoryTables], object]] = {
    "title": lambda t: _change_one(t.sessions, title="mine"),
    "goal": lambda t: _change_one(t.sessions, goal=codec.to_json(Goal("mine"))),
    "preview": lambda t: _change_one(t.heads, preview="mine"),
    "sums": lambda t: _change_one(t.heads, cost=1),
    "branch": lambda t: _change_one(t.branches, created_at=1),
    "message": _change_message,
    "turn": lambda t: _change_one(next(iter(t.turns.values())), run_id="mine"),
    "ledger": lambda t: _change_one(next(iter(t.tools.values())), ended_at=1),
    "draft": lambda t: next(iter(t.drafts.values())).popitem(),
    "waiting input": lambda t: _change_one(next(iter(t.queue.values())), created_at=1),
    "usage": lambda t: _change_one(next(iter(t.usage.values())), cost=1),
    "file": lambda t: t.blobs.update(dict.fromkeys(t.blobs, b"mine")),
}


@pytest.mark.parametrize("what", _TAMPERED)
def test_the_comparison_finds_whatever_is_not_the_same(source: Store, what: str) -> None:
    """A single changed value in any table of the target is reported as a difference."""
    assert _hold(source, 0, "half") is not None
    with holdfast.open("memory:") as target:
        assert source.copy(target).same
        assert isinstance(target.backend, MemoryBackend)
        tables = target.backend.tables
        report = _meanwhile(source, target, 4, lambda: _TAMPERED[what](tables))
        assert _brought(report)[:2] == (0, 0)
        assert not report.same
        assert report.source.sha256 != report.target.sha256
        assert len(report.changed + report.differs) == 1


# ------------------------------------------------------------------------------------------ damage


def _harm(url: Path | str, statement: str) -> None:
    """Damage the stored rows directly."""
    if str(url).startswith("postgresql:"):
        with superuser(str(url)) as admin:
            admin.execute(statement)
        return
    connection = apsw.Connection(str(url).removeprefix("sqlite://"))
    connection.execute(statement)
    connection.close()


def _damaged_store(url: Path | str) -> None:
    with holdfast.open(url) as store:
        store.session("sound").append(Message.user("one"), Message.user(["two", File(data=b"f")]))
        hurt = store.session("hurt")
        hurt.append(*[Message.user(f"m{n}") for n in range(5)])
        with hurt.turn(model="m") as turn:
            turn.assistant("reply", usage=Usage(1))
        store.session("also hurt").append(Message.user("k"))


@pytest.mark.parametrize(("first", "second"), _WAYS)
def test_a_message_that_cannot_be_read_costs_only_itself(
    first: Kind, second: Kind, tmp_path: Path
) -> None:
    """A placeholder takes its seq, it is reported, and a second copy succeeds."""
    with place(first, tmp_path) as a, place(second, tmp_path) as b:
        _damaged_store(a)
        _harm(a, "UPDATE messages SET body = body || ' ' WHERE body LIKE '%m3%'")
        for added in (3, 0):
            with holdfast.open(a) as source:
                report = source.copy(b)
            assert (report.added, report.differs, report.changed) == (added, (), ())
            assert report.source == report.target
            assert not report.same
            (damage,) = report.damage
            assert (damage.seq, "checksum" in damage.what) == (4, True)
        with holdfast.open(b) as target:
            history = target.session("hurt").messages()
            assert [m.status for m in history] == ["complete"] * 3 + ["damaged"] + ["complete"] * 2
            assert target.verify() == []


def test_a_large_message_that_cannot_be_read_has_a_large_stand_in(tmp_path: Path) -> None:
    """The unreadable bytes are stored as a blob, like every large part."""
    with holdfast.open(tmp_path / "a.db") as store:
        store.session("k").append(Message.user([f"{n}" * 50_000 for n in range(3)]))
    _harm(tmp_path / "a.db", "UPDATE messages SET body = body || ' '")
    for added in (1, 0):
        with holdfast.open(tmp_path / "a.db") as source:
            report = source.copy(tmp_path / "b.db")
        assert (report.added, report.differs, len(report.damage)) == (added, (), 1)
    with holdfast.open(tmp_path / "b.db") as target:
        (left,) = target.session("k").messages()
        assert len(str(left.parts[0])) > 150_000
        assert target.verify() == []


def test_what_was_sound_when_it_was_copied_stays_so(tmp_path: Path) -> None:
    """Damage in the source after the copy does not change the copy."""
    _damaged_store(tmp_path / "a.db")
    with holdfast.open(tmp_path / "a.db") as source:
        assert source.copy(tmp_path / "b.db").same
    _harm(tmp_path / "a.db", "UPDATE messages SET body = body || ' ' WHERE body LIKE '%m3%'")
    with holdfast.open(tmp_path / "a.db") as source:
        report = source.copy(tmp_path / "b.db")
        assert len(report.damage) == 1
        assert report.differs == (source.session("hurt").id,)
    with holdfast.open(tmp_path / "b.db") as target:
        texts = [m.text for m in target.session("hurt").messages()]
        assert texts == [*[f"m{n}" for n in range(5)], "reply"]


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("sqlite", "DELETE FROM messages WHERE body LIKE '%m2%'"),
        ("postgres", "DELETE FROM messages WHERE body LIKE '%m2%'"),
        ("sqlite", "UPDATE turns SET error = 'x'"),
        ("sqlite", "UPDATE branches SET token = 'x' WHERE session = (SELECT session FROM turns)"),
    ],
)
def test_a_family_that_cannot_be_read_costs_only_itself(
    tmp_path: Path, kind: Kind, harm: str
) -> None:
    """With missing messages or a row that fails its checksum, the other sessions are copied."""
    with place(kind, tmp_path) as url:
        _damaged_store(url)
        _harm(url, harm)
        with holdfast.open(url) as source:
            report = source.copy(tmp_path / "b.db")
            hurt = source.session("hurt").id
    assert (report.added, report.same, report.differs) == (2, False, ())
    assert report.source == report.target
    assert {damage.session_id for damage in report.damage} == {hurt}
    assert any("it was not copied" in damage.what for damage in report.damage)
    with holdfast.open(tmp_path / "b.db") as target:
        assert len(listed(target)) == 2
        assert target.verify() == []


def test_a_file_whose_data_is_lost_keeps_its_name(tmp_path: Path) -> None:
    """The loss is reported."""
    _damaged_store(tmp_path / "a.db")
    _harm(tmp_path / "a.db", "UPDATE blobs SET data = x'00'")
    with holdfast.open(tmp_path / "a.db") as source:
        report = source.copy(tmp_path / "b.db")
    assert (report.added, report.differs, report.source.blobs) == (3, (), 0)
    assert any("the data of a file" in damage.what for damage in report.damage)


def test_a_damaged_session_in_the_trash_is_not_lost_silently(tmp_path: Path) -> None:
    """It is reported by a copy and by an export, as every other session is."""
    _damaged_store(tmp_path / "a.db")
    with holdfast.open(tmp_path / "a.db") as source:
        source.trash("hurt")
    _harm(tmp_path / "a.db", "UPDATE sessions SET title = 'x' WHERE key = 'hurt'")
    with holdfast.open(tmp_path / "a.db", readonly=True) as source:
        report = source.copy(tmp_path / "b.db")
    assert report.added == 2
    assert ["checksum" in damage.what for damage in report.damage] == [True]
    with holdfast.open(tmp_path / "a.db", readonly=True) as source:
        assert source.export(str(tmp_path / "b.jsonl")).sessions == 2
        assert ["checksum" in damage.what for damage in source.damage] == [True]


def test_a_damaged_target_is_an_error_of_its_own(tmp_path: Path) -> None:
    """It is not reported as damage of the source."""
    _damaged_store(tmp_path / "a.db")
    with holdfast.open(tmp_path / "a.db") as source:
        source.copy(tmp_path / "b.db")
        _harm(tmp_path / "b.db", "UPDATE messages SET body = body || ' ' WHERE body LIKE '%m3%'")
        report = source.copy(tmp_path / "b.db")
        assert (report.differs, report.damage) == ((source.session("hurt").id,), ())
        _harm(tmp_path / "b.db", "UPDATE sessions SET title = 'x' WHERE key = 'hurt'")
        with pytest.raises(holdfast.errors.Damaged):
            source.copy(tmp_path / "b.db")
        assert source.damage == []
