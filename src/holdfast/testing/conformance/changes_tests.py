"""Whole changes: messages or a move, and the session's fields, in one write or not at all."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast import codec, ids
from holdfast.clock import to_datetime
from holdfast.errors import (
    BadMessage,
    BadQuery,
    Conflict,
    HeadMoved,
    IdConflict,
    KeyTaken,
    PreconditionFailed,
    SessionBusy,
)
from holdfast.operations import append, head_moves, sessions
from holdfast.operations.session_changes import SessionUpdate
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Operation, Transaction
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, read_session, texts
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import JSON, File, Goal, Head, Message, SessionChanges, Usage

_NOW = to_datetime(1_700_000_000_000_000)
_TOKEN = "the token"  # noqa: S105 - a mark, no secret

# Every write of a session that takes `update=`, as it is called on a session with some messages.
_UPDATING: dict[str, Callable[..., object]] = {
    "append": lambda s, **more: s.append(Message.user("x"), **more),
    "rewind": lambda s, **more: s.rewind(1, **more),
    "undo": lambda s, **more: s.undo(**more),
    "redo": lambda s, **more: s.redo(**more),
    "replace": lambda s, **more: s.replace([Message.user("x")], **more),
    "replace a tail": lambda s, **more: s.replace([Message.user("x")], keep=1, **more),
    "replace by more": lambda s, **more: s.replace([*s.messages(), Message.user("x")], **more),
    "clear": lambda s, **more: s.clear(**more),
    "summarize": lambda s, **more: s.summarize("x", **more),
}
# Those that store or move nothing, because all is as it should be.
_UPDATING_ALONE: dict[str, Callable[..., object]] = {
    "append": lambda s, **more: s.append(**more),
    "rewind": lambda s, **more: s.rewind(s.head(), **more),
    "replace": lambda s, **more: s.replace(s.messages(), **more),
    "replace no tail": lambda s, **more: s.replace([], keep=s.head(), **more),
}


def _made(session: Session, write: str, update: SessionUpdate) -> Operation[Any]:
    """Return a write as one operation, which can be run twice."""
    n, said = number_of(session), session.messages()
    batch = codec.encode_history([Message.user("new")], _NOW)
    if write == "append":
        return append.append(n, batch, update=update)
    if write == "summarize":
        return head_moves.summarize(
            n, "x", None, message_id="sum", now=_NOW, expect=None, update=update
        )
    if write == "fork":
        row = sessions.new_row(id=ids.session_id())
        origin = sessions.Origin(parent=n, relation="fork")
        return sessions.create(row, origin=origin, batch=batch, update=update)
    if write == "replace by more":
        batch = codec.encode_history([*said, Message.user("new")], _NOW)
    moves: dict[str, Callable[..., Operation[Any]]] = {
        "rewind": partial(head_moves.rewind, n, 1),
        "undo": partial(head_moves.undo, n, 1),
        "clear": partial(head_moves.clear, n),
        "replace": partial(head_moves.replace, n, batch),
        "replace a tail": partial(head_moves.replace, n, batch, keep=1),
        "replace by more": partial(head_moves.replace, n, batch),
    }
    return moves[write](token=_TOKEN, expect=None, update=update)


def _run_and_fail(operation: Operation[Any], tx: Transaction) -> None:
    operation(tx)
    raise ValueError("on purpose")


_DELETIONS: dict[str, Callable[[Store], Callable[..., object]]] = {
    "trash": lambda store: store.trash,
    "purge": lambda store: store.purge,
    "purge and erase": lambda store: partial(store.purge, forks="erase"),
}
_TWICE = [
    "append",
    "rewind",
    "undo",
    "clear",
    "replace",
    "replace a tail",
    "replace by more",
    "summarize",
]


class WholeChangeTests(StoreFixtures):
    """`update=` of every write, first entries of new sessions, and what an update compares."""

    # -------------------------------------------------------------------------- both or neither

    @pytest.mark.parametrize("write", _UPDATING)
    def test_both_are_stored(self, store: Store, session: Session, write: str) -> None:
        """The same messages or move as without it, and the changes of `update`."""
        _prepare(session, write)
        before = session.head()
        update: SessionChanges = {"title": "t", "metadata": {"a": None, "b": 2}, "goal": Goal("g")}
        head = _UPDATING[write](session, update=update)
        assert head != before
        again = self.reopen(store).get(session.id)
        assert again.head() == head
        info = again.info()
        assert (info.title, info.title_by, info.goal) == ("t", "user", Goal("g"))
        assert info.metadata == {"b": 2}

    @pytest.mark.parametrize("write", _UPDATING_ALONE)
    def test_a_write_without_effect_is_an_update(self, session: Session, write: str) -> None:
        """The head stays, and the changes are stored."""
        _prepare(session, write)
        before, said = session.head(), session.messages()
        assert _UPDATING_ALONE[write](session, update={"title": "t"}) == before
        assert (session.messages(), session.info().title) == (said, "t")
        session.update(title="later")
        with pytest.raises(HeadMoved):
            _UPDATING_ALONE[write](session, update={"title": "t"}, expect=Head(9, 9))
        assert session.info().title == "later"

    @pytest.mark.parametrize("write", _UPDATING)
    def test_what_is_not_as_expected_refuses_both(self, session: Session, write: str) -> None:
        """`Conflict` or `HeadMoved`: no message, no move, no change."""
        _prepare(session, write)
        before = read_session(session)
        for expected in ({"expect_metadata": {"a": 2}}, {"expect_goal": Goal("another")}):
            with pytest.raises(Conflict, match="nothing was stored"):
                _UPDATING[write](session, update={"title": "t", **expected})
        with pytest.raises(HeadMoved):
            _UPDATING[write](session, update={"title": "t"}, expect=Head(9, 9))
        assert read_session(session) == before

    @pytest.mark.parametrize("write", _UPDATING)
    def test_a_bad_update_refuses_both(self, session: Session, write: str) -> None:
        """`BadMessage` names the field."""
        _prepare(session, write)
        before = read_session(session)
        bad: list[tuple[Any, str]] = [
            ({"colour": "red"}, "colour"),
            ({"expect": Head(1, 1)}, "expect"),
            ({"title": 5}, "title"),
            ({"expect_metadata": 5}, "expect_metadata"),
            ({"expect_metadata": {"k": object()}}, "expect_metadata"),
            ({1: 2}, "1"),
            (["title"], "update"),
        ]
        for update, field in bad:
            with pytest.raises(BadMessage, match=field):
                _UPDATING[write](session, update=update)
        assert read_session(session) == before

    def test_what_refuses_the_messages_refuses_the_update(self, session: Session) -> None:
        """An id that is taken, a file that is not there, an open turn, nothing to redo."""
        session.append(Message.user("a", id="mine"))
        before = read_session(session)
        update: SessionChanges = {"title": "t"}
        with pytest.raises(IdConflict):
            session.append(Message.user("x"), Message.user("b", id="mine"), update=update)
        with pytest.raises(IdConflict):
            session.replace([Message.user("b", id="mine")], keep=1, update=update)
        for write in (session.append, lambda m, **more: session.replace([m], **more)):
            with pytest.raises(BadMessage, match="not in this store"):
                write(Message.user([File(sha256="0" * 64)]), update=update)
        with pytest.raises(BadQuery, match="redo"):
            session.redo(update=update)
        assert read_session(session) == before
        with session.turn():
            with pytest.raises(SessionBusy):
                session.clear(update=update)
            assert session.info().title is None

    def test_an_append_with_an_update_goes_through_while_a_turn_is_open(
        self, session: Session
    ) -> None:
        """As both do alone; the turn is not affected."""
        with session.turn() as turn:
            session.append(Message.user("meanwhile"), update={"title": "t"})
            turn.user("a")
        assert (texts(session), session.info().title) == (["meanwhile", "a"], "t")

    def test_threads_that_compare_and_append_lose_nothing(self, session: Session) -> None:
        """A count in metadata is raised with each message: none is lost, none is counted twice."""

        def count(name: str) -> None:
            while True:
                seen = session.info().metadata.get("count")
                more = 1 if not isinstance(seen, int) else seen + 1
                changes: SessionChanges = {
                    "metadata": {"count": more},
                    "expect_metadata": {"count": seen},
                }
                with suppress(Conflict):
                    session.append(Message.user(f"{name} {more}"), update=changes)
                    return

        run_concurrently(*[partial(count, name) for name in "abcdefgh"])
        assert session.info().metadata == {"count": 8}
        assert [text.split()[1] for text in texts(session)] == list("12345678")

    # --------------------------------------------------------------------------------- retries

    def test_a_retried_append_updates_nothing(self, session: Session) -> None:
        """All its messages are stored: the head of the first time, whatever was changed since."""
        messages = parse_conversation("u a")
        changes: SessionChanges = {
            "title": "t",
            "metadata": {"v": 1},
            "expect_metadata": {"v": None},
        }
        first = session.append(*messages, expect=Head(1, 0), update=changes)
        session.append(Message.user("on"), update={"title": "later"})
        assert session.append(*messages, expect=Head(1, 0), update=changes) == first
        assert (session.info().title, session.info().metadata) == ("later", {"v": 1})
        assert session.append(*messages, update={"expect_goal": Goal("never")}) == first

    @pytest.mark.parametrize("write", [*_TWICE, "fork"])
    def test_a_write_that_runs_twice_updates_once(
        self, store: Store, session: Session, write: str
    ) -> None:
        """It neither conflicts with itself nor overwrites a later update."""
        session.append(*parse_conversation("u a u a"))
        changes: SessionChanges = {"metadata": {"v": 1}, "expect_metadata": {"v": None}}
        operation = _made(session, write, SessionUpdate(changes))
        first = store.backend.write(operation)
        target = store.get(first.id) if write == "fork" else session
        assert target.info().metadata == {"v": 1}
        for later in (1, 2):
            target.update(metadata={"v": later})
            before = read_session(target)
            again = store.backend.write(operation)
            assert again.id == first.id if write == "fork" else again == first
            assert read_session(target) == before

    @pytest.mark.parametrize("write", _TWICE)
    def test_a_run_that_was_rolled_back_counts_for_nothing(
        self, store: Store, session: Session, write: str
    ) -> None:
        """Another writer's update, equal to what that run made, refuses the next one."""
        session.append(*parse_conversation("u a u a"))
        changes: SessionChanges = {"metadata": {"v": 1}, "expect_metadata": {"v": None}}
        operation = _made(session, write, SessionUpdate(changes))
        with pytest.raises(ValueError, match="on purpose"):
            store.backend.write(partial(_run_and_fail, operation))
        session.update(**changes)
        before = read_session(session)
        with pytest.raises(Conflict, match="metadata 'v'"):
            store.backend.write(operation)
        assert read_session(session) == before

    def test_an_update_that_runs_twice_does_not_conflict_with_itself(
        self, store: Store, session: Session
    ) -> None:
        """The session is as its first run left it, so it is stored."""
        head = session.append(Message.user("a"))
        changes: SessionChanges = {"metadata": {"v": 1}, "expect_metadata": {"v": None}}
        operation = sessions.update(number_of(session), SessionUpdate(changes), expect=head)
        first = store.backend.write(operation)
        assert store.backend.write(operation) == first
        session.append(Message.user("b"))
        assert store.backend.write(operation).metadata == {"v": 1}
        session.update(metadata={"v": 2})
        with pytest.raises(Conflict):
            store.backend.write(operation)
        assert session.info().metadata == {"v": 2}

    # ---------------------------------------------------------------------- what update compares

    def test_metadata_is_compared_by_key(self, store: Store, session: Session) -> None:
        """Each named key; `None` for one that must not be there. Others do not matter."""
        session.update(metadata={"a": {"x": [1, None], "y": 1.0}, "b": False})
        same: dict[str, JSON] = {"a": {"y": 1.0, "x": [1, None]}, "c": None}
        info = session.update(metadata={"c": 1}, expect_metadata=same)
        assert info.metadata["c"] == 1
        assert session.update(title="t", expect_metadata={}).title == "t"
        assert self.reopen(store).get(session.id).info().metadata["c"] == 1

    def test_other_metadata_is_kept(self, session: Session) -> None:
        """`PreconditionFailed` names the key, and nothing of the call is stored."""
        session.update(metadata={"a": 1})
        before = session.info()
        others: list[dict[str, JSON]] = [{"a": 1, "b": 1}, {"b": {}}]
        others += [{"a": 2}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": None}]
        for expected in others:
            with pytest.raises(PreconditionFailed, match=r"metadata '[ab]'"):
                session.update(title="t", metadata={"a": 9}, expect_metadata=expected)
        assert session.info() == before

    # ------------------------------------------------------------------------- first entries

    @pytest.mark.parametrize("relation", [None, "continue", "fork", "reset", "delegate"])
    def test_a_session_begins_with_entries_and_an_update(
        self,
        store: Store,
        session: Session,
        relation: Any,  # noqa: ANN401
    ) -> None:
        """All there at once: after what it shares with its parent, in its preview and sums."""
        session.append(*parse_conversation("u a"))
        entries = [
            Message.user(["first", File(data=b"a file")], usage=Usage(3)),
            Message.assistant("reply"),
        ]
        made = store.create(
            parent=None if relation is None else session,
            relation=relation or "continue",
            title="mine",
            metadata={"a": 1},
            entries=entries,
            update={"pinned": True, "goal": Goal("g"), "metadata": {"b": 2}, "auto_title": "no"},
        )
        shared = ["u1", "a2"] if relation in {"continue", "fork"} else []
        assert texts(made) == [*shared, "first", "reply"]
        info = self.reopen(store).get(made.id).info()
        assert (info.title, info.pinned, info.goal) == ("mine", True, Goal("g"))
        assert (info.metadata, info.messages) == ({"a": 1, "b": 2}, len(shared) + 2)
        assert (info.preview, info.usage.input) == ("u1" if shared else "first", 3)

    def test_a_fork_begins_with_entries_and_an_update(self, session: Session) -> None:
        """After the message it is forked at; ids behind that one are free there."""
        said = parse_conversation("u a u a")
        session.append(*said)
        anew = Message.user("anew", id=said[2].id)
        fork = session.fork(2, entries=[said[0], anew], update={"model": "m", "archived": True})
        assert texts(fork) == ["u1", "a2", "anew"]
        assert (fork.info().model, fork.info().archived) == ("m", True)
        assert texts(session) == ["u1", "a2", "u3", "a4"]
        with pytest.raises(IdConflict):
            session.fork(3, entries=[anew])
        assert [link.session_id for link in session.children()] == [fork.id]

    def test_of_a_session_that_is_refused_nothing_is_stored(
        self, store: Store, session: Session
    ) -> None:
        """Whatever is wrong with it: key, head, entries or update."""
        session.append(*parse_conversation("u a"))
        blobs = store.stats().blobs
        entry = Message.user([File(data=b"never")])
        refusals: list[tuple[type[Exception], dict[str, Any]]] = [
            (KeyTaken, {"key": "the session"}),
            (BadMessage, {"entries": [entry, "text"]}),
            (BadMessage, {"entries": entry}),
            (BadMessage, {"entries": [entry, Message.user([File(sha256="0" * 64)])]}),
            (IdConflict, {"entries": [Message.user("a", id="i"), Message.user("b", id="i")]}),
            (BadMessage, {"update": {"colour": "red"}}),
            (Conflict, {"update": {"expect_metadata": {"a": 1}}}),
        ]
        for error, given in refusals:
            with pytest.raises(error):
                store.create(**{"entries": [entry], **given})
            with pytest.raises(error):
                session.fork(1, **{"entries": [entry], **given})
        with pytest.raises(HeadMoved):
            session.fork(1, entries=[entry], expect=Head(1, 1))
        assert [info.id for info in store.sessions()] == [session.id]
        assert (store.stats().messages, store.stats().blobs) == (2, blobs)

    # ---------------------------------------------------------------------------- deletion

    @pytest.mark.parametrize("deletion", _DELETIONS)
    def test_a_session_that_moved_on_is_not_deleted(self, store: Store, deletion: str) -> None:
        """`HeadMoved`, and nothing is erased; with the head of now it goes."""
        session = store.session("k")
        session.append(*parse_conversation("u a"), Message.user([File(data=b"x" * 100)]))
        fork = session.fork()
        delete = _DELETIONS[deletion](store)
        seen = session.head()
        session.append(Message.user("meanwhile"))
        before = (read_session(session), read_session(fork), store.stats())
        with pytest.raises(HeadMoved) as moved:
            delete(session.id, expect=seen)
        assert (moved.value.expected, moved.value.actual) == (seen, session.head())
        assert (read_session(session), read_session(fork), store.stats()) == before
        delete(session.id, expect=session.head())
        assert session.id not in [info.id for info in store.sessions()]

    def test_a_long_session_that_moved_on_is_not_purged(self, store: Store) -> None:
        """Also if it would be erased in steps."""
        session = store.session("k")
        seen = session.append(*[Message.user("x") for _ in range(600)])
        session.append(Message.user("meanwhile"))
        with pytest.raises(HeadMoved):
            store.purge(session.id, expect=seen)
        assert len(session.messages()) == 601
        assert store.purge(session.id, expect=session.head()).messages == 601


def _prepare(session: Session, write: str) -> None:
    session.append(*parse_conversation("u a u a"), update={"metadata": {"a": 1}})
    if write == "redo":
        session.undo()
