"""Import into a store with data: existing sessions stay, forks join their parents if they match."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store, ToolCall, Usage
from holdfast.errors import AmbiguousRef, SessionNotFound
from holdfast.values import Damage, Raw
from tests.transfer.views import lines_of, listed, shown


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Store]:
    """The store that is exported."""
    with holdfast.open(tmp_path / "there.db") as store:
        yield store


def _texts(store: Store, ref: str) -> list[str]:
    return [message.text for message in store.get(ref).messages()]


def test_a_second_import_adds_nothing(there: Store, target: Store, tmp_path: Path) -> None:
    """Also if the session was written to here since: it is reported as skipped, and unchanged."""
    session = there.session("k")
    session.append(Message.user("one"))
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    target.session("k").append(Message.user("here"))
    session.append(Message.user("there"))
    there.export(tmp_path / "two.jsonl")
    before = shown(target)
    for name in ("one", "two"):
        report = target.import_(tmp_path / f"{name}.jsonl", trust=True)
        assert (report.sessions, report.messages) == (0, 0)
        assert (report.skipped, report.damage) == ((session.id,), ())
    assert shown(target) == before


def test_a_fork_joins_its_parent(there: Store, target: Store, tmp_path: Path) -> None:
    """Nothing is stored twice."""
    parent = there.session("parent")
    parent.append(*[Message.user(f"m{n}") for n in range(5)])
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    fork = parent.fork(3, key="fork")
    fork.append(Message.user("forked"))
    for refs in ((), (fork.id,)):
        there.export(tmp_path / "two.jsonl", *refs, overwrite=True)
        with holdfast.open(tmp_path / f"target-{len(refs)}.db") as store:
            store.import_(tmp_path / "one.jsonl", trust=True)
            report = store.import_(tmp_path / "two.jsonl", trust=True)
            assert (report.sessions, report.messages, report.damage) == (1, 1, ())
            assert report.skipped == (() if refs else (parent.id,))
            assert store.stats().messages == 6
            assert shown(store)["each"] == shown(there)["each"]
            assert store.verify() == []


def test_a_fork_of_a_later_branch_joins_its_parent(
    there: Store, target: Store, tmp_path: Path
) -> None:
    """Through several branches of several sessions."""
    root = there.session("root")
    root.append(*[Message.user(f"r{n}") for n in range(4)])
    root.rewind(2)
    root.append(Message.user("again"))
    middle = root.fork(key="middle")
    middle.append(Message.user("middle"))
    middle.undo()
    middle.append(Message.user("other"))
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    last = middle.fork(key="last")
    last.append(Message.user("last"))
    there.export(tmp_path / "two.jsonl", last.id)
    report = target.import_(tmp_path / "two.jsonl", trust=True)
    assert (report.sessions, report.messages, report.damage) == (1, 1, ())
    assert shown(target) == shown(there)
    assert target.verify() == []


def test_a_fork_of_what_went_on_differently(there: Store, target: Store, tmp_path: Path) -> None:
    """It does not join a different history: the shared messages are imported with it."""
    parent = there.session("parent")
    parent.append(Message.user("one"), Message.user("two"))
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    target.session("parent").append(Message.user("three, here"))
    parent.append(Message.user("three, there"))
    fork = parent.fork(key="fork")
    fork.append(Message.user("four"))
    there.export(tmp_path / "two.jsonl")
    report = target.import_(tmp_path / "two.jsonl", trust=True)
    assert (report.sessions, report.skipped) == (1, (parent.id,))
    (damage,) = report.damage
    assert damage.session_id == parent.id
    assert "has another history here" in damage.what
    assert _texts(target, "parent") == ["one", "two", "three, here"]
    assert _texts(target, "fork") == ["one", "two", "three, there", "four"]
    assert [info.key for info in listed(target)] == ["fork", "parent"]
    assert target.verify() == []
    target.purge(fork.id)
    assert target.stats().messages == 3


def test_a_fork_of_what_is_shorter_here(there: Store, target: Store, tmp_path: Path) -> None:
    """It is imported with the messages that the store lacks."""
    parent = there.session("parent")
    parent.append(Message.user("one"))
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    parent.append(Message.user("two"))
    fork = parent.fork(key="fork")
    there.export(tmp_path / "two.jsonl", fork.id)
    assert target.import_(tmp_path / "two.jsonl", trust=True).sessions == 1
    assert _texts(target, "fork") == ["one", "two"]
    assert _texts(target, "parent") == ["one"]
    assert target.verify() == []


def test_what_was_purged_here_is_told(there: Store, target: Store, tmp_path: Path) -> None:
    """While a fork keeps part of it, it cannot be imported; afterwards it can."""
    parent = there.session("parent")
    parent.append(Message.user("one"), Message.user("two"))
    fork = parent.fork(1, key="fork")
    there.export(tmp_path / "out.jsonl")
    target.import_(tmp_path / "out.jsonl", trust=True)
    target.purge(parent.id)
    report = target.import_(tmp_path / "out.jsonl", trust=True)
    assert report.skipped == (parent.id, fork.id)
    (damage,) = report.damage
    assert damage.session_id == parent.id
    assert "was purged here" in damage.what
    target.purge(fork.id)
    assert target.import_(tmp_path / "out.jsonl", trust=True).sessions == 2
    assert shown(target) == shown(there)
    assert target.verify() == []


def test_another_fork_of_what_was_purged_joins_it(
    there: Store, target: Store, tmp_path: Path
) -> None:
    """The messages that a purge kept are reused, as far as they go."""
    parent = there.session("parent")
    parent.append(Message.user("one"), Message.user("two"))
    parent.fork(2, key="first")
    there.export(tmp_path / "one.jsonl")
    target.import_(tmp_path / "one.jsonl", trust=True)
    target.purge(parent.id)
    second = parent.fork(1, key="second")
    there.export(tmp_path / "two.jsonl", second.id)
    report = target.import_(tmp_path / "two.jsonl", trust=True)
    assert (report.sessions, report.messages, report.damage) == (1, 0, ())
    assert _texts(target, "second") == ["one"]
    assert target.stats().messages == 2
    assert target.verify() == []


def test_a_key_that_is_taken(there: Store, target: Store, tmp_path: Path) -> None:
    """The session is imported without the key, and the report says so."""
    came = there.session("k")
    came.append(Message.user("there"))
    mine = target.session("k")
    there.export(tmp_path / "out.jsonl")
    report = target.import_(tmp_path / "out.jsonl", trust=True)
    what = f"session {mine.id} already has its key; it was imported without a key"
    assert report.damage == (Damage(what=what, session_id=came.id),)
    assert target.get(came.id).key is None
    assert _texts(target, came.id) == ["there"]
    assert target.session("k").id == mine.id
    assert target.verify() == []


def test_a_key_in_the_trash_is_not_taken(there: Store, target: Store, tmp_path: Path) -> None:
    """The session has its key again when it is restored."""
    came = there.session("k")
    there.trash(came.id)
    target.session("k")
    there.export(tmp_path / "out.jsonl")
    assert target.import_(tmp_path / "out.jsonl", trust=True).damage == ()
    assert [info.key for info in listed(target, trashed=True)] == ["k"]


def test_lists_keep_their_order(there: Store, target: Store, tmp_path: Path) -> None:
    """By last write, across families; the sessions that existed before come after them."""
    target.session("here")
    one, two, three = (there.session(key) for key in "abc")
    one.append(Message.user("x"))
    fork = two.fork(key="d")
    three.append(Message.user("x"))
    two.append(Message.user("x"))
    assert fork.key == "d"
    there.export(tmp_path / "out.jsonl")
    target.import_(tmp_path / "out.jsonl", trust=True)
    assert [info.key for info in listed(there)] == ["b", "c", "d", "a"]
    assert [info.key for info in listed(target)] == ["b", "c", "d", "a", "here"]
    latest = target.latest()
    assert latest is not None
    assert latest.key == "b"


def test_one_by_one_or_together(there: Store, target: Store, tmp_path: Path) -> None:
    """Sessions are named as in every other call, also those in the trash."""
    there.session("a", title="first")
    there.session("b")
    gone = there.session("c")
    there.trash(gone.id)
    report = there.export(tmp_path / "out.jsonl", "first", gone.id[:8], "c", gone.id)
    assert report.sessions == 2
    target.import_(tmp_path / "out.jsonl", trust=True)
    assert [info.key for info in listed(target)] == ["a"]
    assert [info.key for info in listed(target, trashed=True)] == ["c"]
    with pytest.raises(SessionNotFound):
        there.export(tmp_path / "none.jsonl", "nobody")
    there.session("d", title="first")
    with pytest.raises(AmbiguousRef):
        there.export(tmp_path / "none.jsonl", "first")
    assert not (tmp_path / "none.jsonl").exists()


def test_an_open_turn_is_interrupted_there(there: Store, target: Store, tmp_path: Path) -> None:
    """Its holder is elsewhere: the draft becomes a partial reply, tool calls are settled."""
    session = there.session("k")
    with session.turn(model="m") as turn:
        turn.user("go")
        turn.assistant(tool_calls=[ToolCall("c1", "run"), ToolCall("c2", "run")])
        turn.tool_started("c1")
        with turn.stream() as reply:
            reply.think("hm")
            reply.write("so far\0\ud800")
            reply.usage(Usage(1, 2))
            reply.flush()
            there.export(tmp_path / "out.jsonl")
            report = target.import_(tmp_path / "out.jsonl", trust=True)
            assert (report.sessions, report.damage) == (1, ())
        there.export(tmp_path / "later.jsonl")
    came = target.session("k", create=False)
    assert (came.info().state, came.info().interrupted) == ("done", False)
    messages = came.messages()
    assert [message.status for message in messages] == ["complete", "complete", "partial"]
    assert messages[2].text == "so far\0\ud800"
    (info,) = came.turns()
    assert info.state == "interrupted"
    assert [(tool.call_id, tool.outcome) for tool in info.tools] == [
        ("c1", "unknown"),
        ("c2", "not_run"),
    ]
    assert came.usage().usage == Usage(1, 2)
    assert target.verify() == []
    with came.turn() as turn:
        turn.user("on")
    assert b'"type":"draft"' in (tmp_path / "out.jsonl").read_bytes()
    assert b'"type":"draft"' not in (tmp_path / "later.jsonl").read_bytes()


def test_a_message_in_a_file_may_be_read_by_anybody(there: Store, tmp_path: Path) -> None:
    """Large texts are inline; each message is on one line, once."""
    session = there.session("k")
    session.append(Message.user("large " * 20_000, id="m1"), Message.user("small", id="m2"))
    session.fork().append(Message.user("forked", id="m3"))
    there.export(tmp_path / "out.jsonl")
    lines = lines_of(tmp_path / "out.jsonl")
    for name in (b"m1", b"m2", b"m3"):
        assert sum(b'"id":"%s"' % name in line for line in lines) == 1
    assert not any(line.startswith(b'{"type":"blob"') for line in lines)
    assert any(b"large large" in line for line in lines)


def test_a_file_is_written_once(there: Store, target: Store, tmp_path: Path) -> None:
    """However many messages and sessions refer to it."""
    file = holdfast.File(name="f", data=b"data" * 1_000)
    for key in ("one", "two"):
        there.session(key).append(Message.user([file]), Message.user([file]))
        there.session(key).enqueue([file])
    assert there.export(tmp_path / "out.jsonl").blobs == 1
    assert sum(line.startswith(b'{"type":"blob"') for line in lines_of(tmp_path / "out.jsonl")) == 1
    target.import_(tmp_path / "out.jsonl", trust=True)
    assert shown(target) == shown(there)
    assert target.verify() == []


def test_an_export_is_of_one_moment(there: Store, target: Store, tmp_path: Path) -> None:
    """No part of a write during the export is in it."""
    one, two = there.session("one"), there.session("two")
    for session in (one, two):
        session.append(*[Message.user("before") for _ in range(500)])
    before = shown(there)

    def write(done: int, total: int) -> None:
        one.append(Message.user("meanwhile"))
        two.clear()
        two.append(Message.user("meanwhile"))
        two.update(title="meanwhile")

    there.export(tmp_path / "out.jsonl", progress=write)
    assert shown(there) != before
    assert target.import_(tmp_path / "out.jsonl", trust=True).damage == ()
    assert shown(target) == before


def test_tenants_are_apart(tmp_path: Path) -> None:
    """An export contains nothing of another tenant; both tenants may have the same sessions."""
    path = tmp_path / "both.db"
    with holdfast.open(path, tenant="a") as a, holdfast.open(path, tenant="b") as b:
        file = holdfast.File(data=b"shared")
        a.session("k").append(Message.user(["of a", file]))
        b.session("k").append(Message.user(["of b", file]))
        mine = b.get("k").id
        a.export(tmp_path / "a.jsonl")
        assert b"of b" not in (tmp_path / "a.jsonl").read_bytes()
        with pytest.raises(SessionNotFound):
            a.export(tmp_path / "none.jsonl", mine)
        report = b.import_(tmp_path / "a.jsonl", trust=True)
        assert (report.sessions, report.skipped) == (1, ())
        assert _texts(b, a.get("k").id) == ["of a"]
        assert [info.id for info in listed(a)] == [a.get("k").id]
        a.purge("k")
        assert _texts(b, report_id(tmp_path / "a.jsonl")) == ["of a"]
        assert (a.verify(), b.verify()) == ([], [])


def report_id(path: Path) -> str:
    """The id of the first session in a file."""
    return path.read_text().splitlines()[1].split('"session":"')[1].split('"')[0]


def test_progress_is_told(there: Store, target: Store, tmp_path: Path) -> None:
    """It only increases, and ends at the total."""
    there.session("k").append(*[Message.user("x" * 10_000) for _ in range(300)])
    told: list[tuple[int, int]] = []
    there.export(tmp_path / "out.jsonl", progress=lambda *at: told.append(at))
    assert told == sorted(told)
    assert told[-1] == (300, 300)
    told.clear()
    target.import_(tmp_path / "out.jsonl", trust=True, progress=lambda *at: told.append(at))
    size = (tmp_path / "out.jsonl").stat().st_size
    assert told == sorted(told)
    assert len(told) > 10
    assert told[-1] == (2 * size, 2 * size)


def test_a_progress_that_raises_stops_it(there: Store, target: Store, tmp_path: Path) -> None:
    """Neither a file nor a session remains."""

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Enough

    there.session("k").append(*[Message.user("x" * 10_000) for _ in range(300)])
    with pytest.raises(Enough):
        there.export(tmp_path / "out.jsonl", progress=stop)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
    there.export(tmp_path / "out.jsonl")
    with pytest.raises(Enough):
        target.import_(tmp_path / "out.jsonl", trust=True, progress=stop)
    assert listed(target) == []
    assert target.import_(tmp_path / "out.jsonl", trust=True).sessions == 1


def test_the_async_twins(there: Store, tmp_path: Path) -> None:
    """They return the same results."""
    session = there.session("k")
    session.append(
        Message.user("one", metadata={"x": 1}), Message(role="user", parts=(Raw("r", 1),))
    )

    async def run() -> None:
        async with holdfast.open_async(there.url) as one, holdfast.open_async("memory:") as two:
            out = await one.export(tmp_path / "out.jsonl", "k", overwrite=True)
            report = await two.import_(tmp_path / "out.jsonl", trust=True)
            assert (report.sessions, report.messages) == (out.sessions, out.messages) == (1, 2)
            assert await (await two.session("k")).messages() == session.messages()

    asyncio.run(run())
