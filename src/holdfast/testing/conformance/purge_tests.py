"""Purge: everything of a session is erased; what forks share is kept, or erased in them."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import (
    BadQuery,
    NotFound,
    SessionBusy,
    SessionNotFound,
)
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.blobs_tests import sha
from holdfast.testing.conformance.conversation import (
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures, drain
from holdfast.values import File, Head, Message, PurgeReport, ToolCall, Usage

_FILE = b"a file" * 100
_CALLS: dict[str, Callable[[Session], object]] = {
    "info": lambda session: session.info(),
    "head": lambda session: session.head(),
    "messages": lambda session: session.messages(),
    "branches": lambda session: session.branches(),
    "lineage": lambda session: session.lineage(),
    "children": lambda session: session.children(),
    "turns": lambda session: session.turns(),
    "usage": lambda session: session.usage(),
    "queued": lambda session: session.queued(),
    "follow": lambda session: session.follow(Head(1, 0)).poll(),
    "append": lambda session: session.append(Message.user("x")),
    "turn": lambda session: session.turn().__enter__(),
    "enqueue": lambda session: session.enqueue("x"),
    "update": lambda session: session.update(title="x"),
    "fork": lambda session: session.fork(),
    "rewind": lambda session: session.rewind(0),
    "undo": lambda session: session.undo(),
    "redo": lambda session: session.redo(),
    "replace": lambda session: session.replace([]),
    "clear": lambda session: session.clear(),
    "summarize": lambda session: session.summarize("x"),
    "recover": lambda session: session.recover(),
}


class PurgeTests(StoreFixtures):
    """Promise 14."""

    def test_everything_of_a_session_goes(self, store: Store, session: Session) -> None:
        """Also abandoned branches; the report counts them, and the key and names are free."""
        with session.turn(run_id="run") as turn:
            turn.user(["a", File(data=_FILE)])
            turn.assistant("", tool_calls=[ToolCall("c", "tool")])
            turn.tool("c", "x" * 100_000)
            turn.assistant("b", usage=Usage(5))
        session.undo()
        session.append(Message.user("again"))
        session.enqueue("waiting")
        session.enqueue("more")
        session.update(title="title")
        report = store.purge("the session")
        assert report.session_id == session.id
        assert (report.messages, report.turns, report.queued, report.drafts) == (5, 1, 2, 0)
        assert (report.kept, report.kept_for, report.erased_in) == (0, (), ())
        assert report.blobs == 2
        assert report.blob_bytes > 100_000 + len(_FILE)
        assert report.pending == ()
        later = self.reopen(store)
        stats = later.stats()
        assert (stats.sessions, stats.messages, stats.turns, stats.branches) == (0, 0, 0, 0)
        assert (stats.blobs, stats.blob_bytes, stats.days, stats.growth) == (0, 0, (), ())
        for ref in (session.id, session.id[:5], "the session", "title", "run"):
            with pytest.raises(SessionNotFound):
                later.get(ref)
        with pytest.raises(NotFound):
            later.blob(sha(_FILE))
        assert later.session("the session").head() == Head(1, 0)

    @pytest.mark.parametrize("needed", [False, True])
    @pytest.mark.parametrize("call", _CALLS)
    def test_a_handle_of_what_was_purged(
        self,
        store: Store,
        session: Session,
        call: str,
        needed: bool,  # noqa: FBT001
    ) -> None:
        """`SessionNotFound` from every operation, also while a fork still needs its messages."""
        session.append(*parse_conversation("u a"))
        fork = session.fork(1) if needed else None
        store.purge(session.id)
        with pytest.raises(SessionNotFound):
            _CALLS[call](session)
        with pytest.raises(SessionNotFound):
            store.purge(session.id)
        if fork is not None:
            assert texts(fork) == ["u1"]

    def test_others_are_untouched(self, store: Store) -> None:
        """Also if they have equal ids, titles or files."""
        sessions = [store.create(title="t", scope="s") for _ in range(3)]
        for session in sessions:
            with session.turn(run_id="run") as turn:
                turn.add(Message.user(["same", File(data=_FILE)], id="same"))
            session.rewind(0)
            session.append(Message.user("same", id="same"))
        others = [sessions[0], sessions[2]]
        before = [read_session(session) for session in others]
        store.purge(sessions[1].id)
        assert [read_session(session) for session in others] == before
        assert [texts(session, branch=1) for session in others] == [["same"], ["same"]]

    def test_an_open_turn_stops_it(self, store: Store, session: Session) -> None:
        """`SessionBusy` while its holder is alive; a turn left open by a crash is purged too."""
        turn = self.open_turn(session)
        turn.user("a")
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        before = read_session(session)
        for forks in ("keep", "erase"):
            with pytest.raises(SessionBusy):
                store.purge(session.id, forks=forks)
        assert read_session(session) == before
        self.expire_leases(store)
        report = store.purge(session.id)
        assert report.turns == 1
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.open_turns) == (0, 0, 0)

    def test_a_busy_fork_does_not_stop_it(self, store: Store, session: Session) -> None:
        """The fork's turn continues, in both modes of the purge."""
        for forks in ("keep", "erase"):
            parent = store.create()
            parent.append(*parse_conversation("u a"))
            fork = parent.fork()
            with fork.turn() as turn:
                turn.user("b")
                store.purge(parent.id, forks=forks)
                turn.assistant("B")
            assert [m.text for m in fork.messages()][-2:] == ["b", "B"]
        assert session.messages() == []

    @pytest.mark.parametrize("forks", ["", "both", None, 5, [], "KEEP"])
    def test_a_way_that_is_none(self, store: Store, session: Session, forks: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it, and nothing is erased."""
        with pytest.raises(BadQuery, match="forks"):
            store.purge(session.id, forks=forks)
        assert session.head() == Head(1, 0)

    # --------------------------------------------------------------------------------- forks, kept

    def test_a_fork_keeps_what_it_shares(self, store: Store, session: Session) -> None:
        """Every shared message is kept; the rest of the parent is erased."""
        for text in "abc":
            take_turn(session, text)
        fork = session.fork(4)
        take_turn(fork, "d")
        shared, own = session.messages()[:4], fork.messages()[4:]
        report = store.purge(session.id)
        assert (report.messages, report.kept, report.kept_for) == (2, 4, (fork.id,))
        assert (report.erased_in, report.turns) == ((), 3)
        again = self.reopen(store).get(fork.id)
        assert again.messages() == [*shared, *own]
        assert again.info().preview == "a"
        assert [again.undo().seq for _ in range(3)] == [4, 2, 0]
        assert again.redo().seq == 2

    def test_what_was_kept_goes_with_the_last_fork(self, store: Store, session: Session) -> None:
        """Each report counts what was really erased."""
        session.append(*(Message.user(str(n)) for n in range(10)))
        long, short = session.fork(8), session.fork(3)
        reports = [store.purge(gone.id) for gone in (session, long, short)]
        assert [(r.messages, r.kept) for r in reports] == [(2, 8), (5, 0), (3, 0)]
        assert [set(r.kept_for) for r in reports] == [{long.id, short.id}, set(), set()]
        stats = store.stats()
        assert (stats.sessions, stats.branches, stats.messages) == (0, 0, 0)

    def test_many_messages_and_many_branches(self, store: Store, session: Session) -> None:
        """In several steps: the fork keeps what it shares, and all goes with the fork."""
        session.append(*(Message.user(f"m{n}") for n in range(2 * MAX_STEP_MESSAGES)))
        for _ in range(20):
            session.rewind(MAX_STEP_MESSAGES)
            session.append(Message.user("again"))
        fork = session.fork()
        kept = texts(fork)
        report = store.purge(session.id)
        assert report.messages == MAX_STEP_MESSAGES + 19
        assert (report.kept, report.kept_for) == (MAX_STEP_MESSAGES + 1, (fork.id,))
        assert texts(fork) == kept
        assert store.verify() == []
        assert store.purge(fork.id).messages == MAX_STEP_MESSAGES + 1
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.branches) == (0, 0, 0)

    @pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
    def test_in_any_order(self, store: Store, order: tuple[int, ...]) -> None:
        """The remaining sessions keep their whole history, on every branch."""
        sessions = _family(store)
        histories = {session.id: _histories(session) for session in sessions}
        rows = store.stats().messages
        for gone in order:
            report = store.purge(sessions[gone].id)
            rows -= report.messages
            del histories[sessions[gone].id]
            left = [session for session in sessions if session.id in histories]
            assert {session.id: _histories(session) for session in left} == histories
            assert store.stats().messages == rows
            assert set(report.kept_for) <= histories.keys()
            assert bool(report.kept) == bool(report.kept_for)
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.branches) == (0, 0, 0)
        assert (stats.blobs, stats.turns) == (0, 0)

    def test_what_a_fork_left_behind_is_kept_for_it(self, store: Store, session: Session) -> None:
        """An abandoned branch of the fork is kept, as the fork may go back to it."""
        session.append(*parse_conversation("u a u a"))
        fork = session.fork()
        fork.rewind(1)
        fork.append(Message.user("other"))
        report = store.purge(session.id)
        assert (report.messages, report.kept) == (0, 4)
        assert texts(fork, branch=1) == ["u1", "a2", "u3", "a4"]
        fork.rewind(Head(1, 4))
        assert texts(fork) == ["u1", "a2", "u3", "a4"]

    def test_a_fork_of_what_was_abandoned_is_kept_whole(
        self, store: Store, session: Session
    ) -> None:
        """Only the parent's branches that a session still needs are kept."""
        session.append(*parse_conversation("u a u a"))
        session.rewind(1)
        session.append(*parse_conversation("s s s"))
        session.clear()
        session.append(*parse_conversation("u"))
        fork = session.fork(Head(1, 3))
        report = store.purge(session.id)
        assert (report.messages, report.kept) == (5, 3)
        assert texts(fork) == ["u1", "a2", "u3"]
        assert store.stats().branches == 2

    def test_a_child_that_shares_nothing_keeps_nothing(
        self, store: Store, session: Session
    ) -> None:
        """Its lineage still names the parent."""
        session.append(*parse_conversation("u a"))
        empty = session.fork(0)
        helper = store.create(parent=session, relation="delegate")
        report = store.purge(session.id)
        assert (report.messages, report.kept, report.kept_for) == (2, 0, ())
        for child in (empty, helper):
            assert [link.state for link in child.lineage()] == ["purged", "live"]
        assert store.stats().branches == 2

    def test_a_fork_in_the_trash_needs_its_history_too(
        self, store: Store, session: Session
    ) -> None:
        """A trashed fork can be restored, so its history is kept."""
        session.append(*parse_conversation("u a"))
        fork = session.fork()
        store.trash(fork.id)
        assert store.purge(session.id).kept_for == (fork.id,)
        store.restore(fork.id)
        assert texts(fork) == ["u1", "a2"]

    def test_forks_of_what_was_purged_go_on(self, store: Store, session: Session) -> None:
        """They can be forked, continued, replaced and undone like any session."""
        for text in "ab":
            take_turn(session, text)
        fork = session.fork()
        store.purge(session.id)
        second = fork.fork(3)
        assert texts(second) == ["a", "A", "b"]
        assert texts(store.create(parent=fork)) == ["a", "A", "b", "B"]
        fork.replace([*fork.messages()[:2], Message.user("new")])
        assert texts(fork) == ["a", "A", "new"]
        assert fork.branches()[-1].parent_id == session.id
        assert [link.session_id for link in second.lineage()] == [session.id, fork.id, second.id]
        store.purge(fork.id)
        assert texts(second) == ["a", "A", "b"]

    def test_the_title_and_names_go_at_once(self, store: Store) -> None:
        """Only the id of a purged session is kept, and only while it is needed."""
        session = store.session("k", title="secret", scope="s", agent="g", cwd="/")
        session.update(metadata={"secret": 1})
        with session.turn(run_id="run") as turn:
            turn.user("a")
        fork = session.fork(title="fork")
        store.purge("k")
        store = self.reopen(store)
        for ref in (session.id, session.id[:6], "k", "secret", "run"):
            with pytest.raises(SessionNotFound):
                store.get(ref)
        assert [info.id for info in store.sessions()] == [fork.id]
        assert len(store.sessions(trashed=True)) == 0
        assert (store.stats().sessions, store.stats().trashed) == (1, 0)
        assert store.get(fork.id).lineage()[0].title is None
        new = store.session("k")
        assert new.id != session.id
        with pytest.raises(SessionNotFound):
            store.create(parent=session.id)

    # ------------------------------------------------------------------------------------- blobs

    def test_blobs_stay_until_their_last_user_is_purged(self, store: Store) -> None:
        """Two sessions, and an abandoned branch of a third."""
        sessions = [store.create() for _ in range(3)]
        for session in sessions:
            session.append(Message.user([File(data=_FILE)]))
        sessions[2].clear()
        for session in sessions:
            assert store.blob(sha(_FILE)) == _FILE
            report = store.purge(session.id)
        assert (report.blobs, report.blob_bytes) == (1, len(_FILE))
        with pytest.raises(NotFound):
            store.blob(sha(_FILE))

    def test_a_blob_that_a_fork_shares(self, store: Store, session: Session) -> None:
        """It is removed with the shared message."""
        session.append(Message.user([File(data=_FILE)]), Message.user([File(data=b"other")]))
        fork = session.fork(1)
        assert store.purge(session.id).blobs == 1
        assert store.blob(sha(_FILE)) == _FILE
        assert store.purge(fork.id).blobs == 1
        assert store.stats().blobs == 0

    def test_a_blob_that_waiting_input_names(self, store: Store, session: Session) -> None:
        """Queued input keeps its file, whichever session stored it."""
        other = store.create()
        other.append(Message.user([File(data=_FILE)]))
        session.enqueue(Message.user(["look", File(sha256=sha(_FILE))]))
        store.purge(other.id)
        with session.turn() as turn:
            assert [m.text for m in turn.take_queued()] == ["look"]
        assert store.blob(sha(_FILE)) == _FILE
        store.purge(session.id)
        assert store.stats().blobs == 0

    def test_a_blob_that_came_with_waiting_input(self, store: Store, session: Session) -> None:
        """The queued input was its only user, so it is removed."""
        session.enqueue(Message.user([File(data=_FILE)]))
        assert store.purge(session.id).queued == 1
        with pytest.raises(NotFound):
            store.blob(sha(_FILE))

    # --------------------------------------------------------------------------------- following

    def test_activity_numbers_are_never_given_again(self, store: Store) -> None:
        """A follower whose last item was a purged session misses no later activity."""
        kept, gone = store.create(), store.create()
        for session in (kept, gone):
            session.append(Message.user("a"))
        follower = store.follow()
        seen = [a.number for a in drain(follower)]
        store.purge(gone.id)
        later = self.reopen(store)
        resumed = later.follow(since=follower.number)
        assert drain(resumed) == []
        later.get(kept.id).append(Message.user("b"))
        new = later.create()
        items = drain(resumed)
        assert [a.session_id for a in items] == [kept.id, new.id]
        assert min(a.number for a in items) > max(seen)

    def test_a_follower_of_a_purged_session_raises(self, store: Store, session: Session) -> None:
        """It raises `SessionNotFound` instead of waiting forever."""
        session.append(*parse_conversation("u a"))
        follower = session.follow()
        assert follower.poll() is not None
        store.purge(session.id)
        with pytest.raises(SessionNotFound):
            drain(follower)

    def test_all_of_them_one_by_one(self, store: Store) -> None:
        """An emptied store works like a new one, and the reports add up."""
        for _ in range(3):
            _family(store)
        stats = store.stats()
        reports: list[PurgeReport] = [store.purge(info.id) for info in store.sessions()]
        assert sum(r.messages for r in reports) == stats.messages
        assert sum(r.turns for r in reports) == stats.turns
        assert sum(r.blobs for r in reports) == stats.blobs
        assert sum(r.blob_bytes for r in reports) == stats.blob_bytes
        assert store.latest() is None
        take_turn(store.session("new"), "a")
        assert store.stats().messages == 2


def _family(store: Store) -> list[Session]:
    """Create five related sessions that share histories, abandoned branches and files."""
    root = store.create()
    take_turn(root, "a")
    root.append(Message.user(["file", File(data=_FILE)]))
    take_turn(root, "b")
    run = store.create(parent=root)
    take_turn(run, "c")
    root.undo()
    take_turn(root, "d")
    fork = root.fork(Head(1, 4))
    fork.append(*parse_conversation("u a"))
    fork.rewind(2)
    deep = run.fork(6)
    deep.append(Message.user("deep"))
    deep.undo()
    last = deep.fork(Head(1, 7))
    last.replace([Message.system("new"), *last.messages()[1:]])
    return [root, run, fork, deep, last]


def _histories(session: Session) -> list[tuple[object, ...]]:
    """Return every branch of a session, message by message."""
    return [
        (branch, tuple(session.messages(branch=branch.number))) for branch in session.branches()
    ]
