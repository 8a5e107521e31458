"""`session.erase`: one message is erased in every session that has it, and nothing else."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.aio import AsyncStore
from holdfast.errors import (
    BadMessage,
    BadQuery,
    IdConflict,
    MessageNotFound,
    ReadOnly,
    SessionNotFound,
)
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    call_message,
    parse_conversation,
    read_session,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures, drain, run_concurrently
from holdfast.testing.legality import PROVIDERS, problems
from holdfast.values import File, Head, Message, Text, ToolCall, Usage

_FILE = b"a file" * 100
_SECRET = "the secret that must not be told"  # noqa: S105 - it is what a user said


class EraseTests(StoreFixtures):
    """Erasure of one message."""

    def test_an_erased_message_keeps_its_position(self, store: Store, session: Session) -> None:
        """Id, seq, role and time stay; text, names and files go; other messages are unchanged."""
        with session.turn(model="m") as turn:
            turn.add(Message.user([_SECRET, File(data=_FILE)], name="n", metadata={"x": _SECRET}))
            turn.assistant("fine", usage=Usage(5, 7))
        before, spent = session.messages(), session.usage()
        report = session.erase(before[0].id)
        assert (report.session_id, report.message_id, report.seq) == (session.id, before[0].id, 1)
        assert (report.places, report.erased_in) == (1, (session.id,))
        assert (report.blobs, report.blob_bytes, report.pending) == (1, len(_FILE), ())
        later = self.reopen(store)
        session = later.get(session.id)
        stone, reply = session.messages()
        assert (stone.id, stone.seq, stone.role) == (before[0].id, 1, "user")
        assert (stone.created_at, stone.turn_id) == (before[0].created_at, before[0].turn_id)
        assert (stone.status, stone.parts, stone.name, stone.metadata) == ("erased", (), None, {})
        assert reply == before[1]
        assert session.usage() == spent
        assert session.info().preview == "fine"
        assert later.stats().blobs == 0

    def test_erasing_is_proved(self, session: Session) -> None:
        """All stored bytes were searched for fragments of it, and none was found."""
        session.append(Message.user(_SECRET), Message.user("other"))
        scan = session.erase(1).scan
        self.check_proof(scan)
        assert scan is not None
        assert scan.fragments >= 1

    def test_what_others_said_as_well_is_no_trace(self, store: Store, session: Session) -> None:
        """The same words in another message are not taken for residue."""
        session.append(Message.user(_SECRET), Message.user(_SECRET))
        store.session("b", title=_SECRET).append(Message.user(f"I quote: {_SECRET}"))
        self.check_proof(session.erase(1).scan)
        assert texts(session) == ["", _SECRET]

    @pytest.mark.parametrize("by", ["id", "seq", "head"])
    def test_the_message_to_erase_is_named_by_any_position(self, session: Session, by: str) -> None:
        """By its id, its seq, or a head."""
        session.append(*parse_conversation("u a u"))
        position = {"id": session.messages()[1].id, "seq": 2, "head": Head(1, 2)}[by]
        assert session.erase(position).seq == 2  # type: ignore[arg-type]
        assert texts(session) == ["u1", "", "u3"]

    @pytest.mark.parametrize("position", [0, 4, "nobody", Head(1, 4), Head(7, 1), Head(1, 0)])
    def test_what_is_not_there_cannot_be_erased(self, session: Session, position: Any) -> None:  # noqa: ANN401
        """`MessageNotFound`, and nothing is changed."""
        session.append(*parse_conversation("u a u"))
        before = read_session(session)
        with pytest.raises(MessageNotFound):
            session.erase(position)
        assert read_session(session) == before

    @pytest.mark.parametrize(
        ("position", "error"),
        [
            (None, BadQuery),
            (-1, BadQuery),
            (1.5, BadQuery),
            (True, BadQuery),
            ([], BadQuery),
            ("", BadMessage),
        ],
    )
    def test_what_names_no_message(
        self,
        session: Session,
        position: Any,  # noqa: ANN401
        error: type[Exception],
    ) -> None:
        """An invalid position is refused, and nothing is changed."""
        session.append(*parse_conversation("u a u"))
        with pytest.raises(error, match="message"):
            session.erase(position)
        assert texts(session) == ["u1", "a2", "u3"]

    def test_erasing_again_changes_nothing(self, session: Session) -> None:
        """The report of the second erasure counts nothing."""
        session.append(*parse_conversation("u a"))
        session.erase(1)
        before = read_session(session)
        report = session.erase(1)
        assert (report.places, report.erased_in, report.blobs) == (0, (), 0)
        assert read_session(session) == before

    # ------------------------------------------------------------------- everywhere it is stored

    def test_forks_and_parents_lose_it_together(self, store: Store, session: Session) -> None:
        """Erasing it in any session of a lineage erases it in all of them."""
        session.append(Message.user(_SECRET, id="s"), Message.assistant("fine"))
        fork = session.fork()
        fork.append(Message.user("fork's"))
        second = fork.fork()
        going_on = store.create(parent=session, relation="continue")
        apart = session.fork(0)
        apart.append(Message.user("apart"))
        report = second.erase("s")
        family = {session.id, fork.id, second.id, going_on.id}
        assert (report.places, set(report.erased_in)) == (1, family)
        store = self.reopen(store)
        for id in family:
            found = store.get(id)
            assert found.messages()[0].status == "erased"
            assert texts(found)[:2] == ["", "fine"]
            assert _SECRET not in (found.info().preview or "")
        assert texts(store.get(apart.id)) == ["apart"]

    def test_copies_by_replace_go_too(self, session: Session) -> None:
        """On other branches, in forks, and in ancestors."""
        session.append(Message.user(_SECRET, id="s"), Message.user([File(data=_FILE)], id="f"))
        fork = session.fork()
        fork.replace([Message.system("new"), *fork.messages()])
        second = fork.fork()
        second.replace([Message.system("newer"), *second.messages()])
        report = second.erase("s")
        assert report.places == 3
        assert texts(session)[0] == ""
        assert texts(fork)[:2] == ["new", ""]
        assert texts(second)[:3] == ["newer", "new", ""]
        assert texts(fork, branch=1)[0] == ""
        report = session.erase("f")
        assert (report.places, report.blobs) == (3, 1)

    def test_all_versions_of_a_message_go(self, session: Session) -> None:
        """Edited versions under its id are the same message, on every branch."""
        session.append(Message.user("the first version", id="s"), Message.assistant("a"))
        session.replace([Message.user("the second version", id="s")])
        session.undo()
        session.append(Message.user("go on"))
        assert session.erase("s").places == 2
        assert [texts(session, branch=n)[:1] for n in (1, 2)] == [[""], [""]]

    def test_what_was_abandoned_is_reached_by_its_id(self, session: Session) -> None:
        """By its id, or by its seq on its branch."""
        session.append(*parse_conversation("u a u a"))
        lost = session.messages()[2:]
        session.rewind(2)
        session.erase(lost[0].id)
        session.erase(Head(1, 4))
        assert texts(session, branch=1) == ["u1", "a2", "", ""]
        assert session.rewind(Head(1, 4)).seq == 4

    def test_another_sessions_message_with_the_same_id_stays(
        self, store: Store, session: Session
    ) -> None:
        """In another lineage always; in the same lineage if its body differs."""
        session.append(Message.user("root"))
        one, other, same = session.fork(), session.fork(), session.fork()
        stranger = store.create()
        one.append(Message.user(_SECRET, id="event"))
        other.append(Message.user("something else", id="event"))
        same.append(Message.user(_SECRET, id="event"))
        stranger.append(Message.user(_SECRET, id="event"))
        report = one.erase("event")
        assert (report.places, set(report.erased_in)) == (2, {one.id, same.id})
        assert texts(other) == ["root", "something else"]
        assert texts(stranger) == [_SECRET]
        assert texts(same) == ["root", ""]

    def test_what_a_purge_kept_for_a_fork_can_be_erased(
        self, store: Store, session: Session
    ) -> None:
        """After the purge the fork alone has it."""
        session.append(Message.user(_SECRET, id="s"), Message.assistant("fine"))
        fork = session.fork()
        store.purge(session.id)
        report = fork.erase("s")
        assert (report.places, report.erased_in) == (1, (fork.id,))
        assert texts(fork) == ["", "fine"]

    def test_in_the_trash_it_is_erased_as_well(self, store: Store, session: Session) -> None:
        """Restoring the session brings back the other messages."""
        session.append(Message.user(_SECRET, id="s"), Message.assistant("fine"))
        fork = session.fork()
        store.trash(session.id)
        assert set(fork.erase("s").erased_in) == {session.id, fork.id}
        store.restore(session.id)
        assert texts(session) == ["", "fine"]

    def test_a_file_that_others_need_stays(self, store: Store, session: Session) -> None:
        """The file is removed with the last message that names it."""
        file = File(data=_FILE)
        session.append(Message.user([file]), Message.user([file]))
        first, second = session.erase(1), session.erase(2)
        assert (first.blobs, second.blobs) == (0, 1)
        assert store.stats().blob_bytes == 0

    def test_a_large_text_goes_whole(self, store: Store, session: Session) -> None:
        """Also what is stored outside its row."""
        session.append(Message.tool("c", [Text("long " * 20_000), File(data=_FILE)]))
        report = session.erase(1)
        assert report.blobs == 2
        assert store.stats().blobs == 0

    # ------------------------------------------------------------------------- what still works

    def test_an_open_turn_goes_on(self, session: Session) -> None:
        """A message of an open turn is erased without waiting, and the turn's reply is stored."""
        with session.turn() as turn:
            turn.user(_SECRET)
            with turn.stream() as reply:
                reply.write("half ")
                assert session.erase(1).places == 1
                reply.write("whole")
            assert session.window().messages
        assert texts(session) == ["", "half whole"]
        assert [turn.state for turn in session.turns()] == ["sealed"]

    def test_a_retry_does_not_bring_it_back(self, session: Session) -> None:
        """`IdConflict`, as for any other body."""
        message = Message.user(_SECRET, id="s")
        session.append(message)
        session.erase("s")
        with pytest.raises(IdConflict):
            session.append(message)
        assert texts(session) == [""]

    @pytest.mark.parametrize("provider", PROVIDERS)
    @pytest.mark.parametrize("gone", [1, 2, 3, 4, 5, 6])
    def test_windows_stay_legal(self, session: Session, provider: Any, gone: int) -> None:  # noqa: ANN401
        """Erasing a call, its result, the first or the last message leaves a legal window."""
        said = [
            Message.user("what is it?"),
            call_message("c1", "c2"),
            Message.tool("c1", _SECRET),
            Message.tool("c2", "two"),
            Message.assistant("it is that"),
            Message.user("thanks"),
        ]
        session.append(*said)
        session.erase(gone)
        window = session.window(provider=provider)
        assert problems(provider, window.messages, window.system) == []
        assert _SECRET not in str(window.messages) or gone != 3

    def test_an_erased_summary_stands_for_nothing(self, session: Session) -> None:
        """The messages it covered are in the window again."""
        session.append(*parse_conversation("u a u a"))
        session.summarize(_SECRET)
        session.append(Message.user("next"))
        session.erase(5)
        shown = str(session.window().messages)
        assert _SECRET not in shown
        assert "u1" in shown

    def test_undo_fork_and_follow_over_what_was_erased(self, session: Session) -> None:
        """A tombstone counts like any message."""
        session.append(*parse_conversation("u a u a"))
        session.erase(3)
        assert session.fork(3).info().messages == 3
        assert [item.text for item in drain(session.follow())] == ["u1", "a2", "", "a4"]
        assert session.undo().seq == 2

    def test_a_tool_call_is_erased_and_its_ledger_stays(self, session: Session) -> None:
        """The ledger keeps that the tool ran; its arguments are erased."""
        with session.turn() as turn:
            turn.user("run it")
            turn.assistant("", tool_calls=[ToolCall("c", "tool", {"x": _SECRET})])
            turn.tool("c", "done")
        session.erase(2)
        assert session.messages()[1].tool_calls == ()
        [ended] = session.turns()
        assert [(line.name, line.outcome) for line in ended.tools] == [("tool", "done")]

    def test_many_at_once_erase_each_once(self, session: Session) -> None:
        """With a concurrent append; every report counts what it erased."""
        session.append(*(Message.user(f"{_SECRET} {n}", id=f"m{n}") for n in range(8)))
        copies: list[int] = []

        def erase(n: int) -> None:
            copies.append(session.erase(f"m{n % 4}").places)

        def append() -> None:
            for n in range(10):
                session.append(Message.user(f"new {n}"))

        run_concurrently(*(lambda n=n: erase(n) for n in range(8)), append)
        assert sum(copies) == 4
        assert [m.status for m in session.messages()[:8]] == ["erased"] * 4 + ["complete"] * 4
        assert session.head().seq == 18

    def test_it_is_refused_where_nothing_may_be_written(
        self, store: Store, session: Session
    ) -> None:
        """In a read-only store, and in a session purged meanwhile."""
        session.append(*parse_conversation("u"))
        if self.persistent:
            reader = self.open(readonly=True)
            with pytest.raises(ReadOnly):
                reader.get(session.id).erase(1)
        assert texts(session) == ["u1"]
        store.purge(session.id)
        with pytest.raises(SessionNotFound):
            session.erase(1)

    def test_another_tenants_message_stays(self) -> None:
        """Also if its id, key and text are the same."""
        self.need_persistence()
        stores = [self.open(tenant=tenant) for tenant in "AB"]
        sessions = [store.session("k") for store in stores]
        for session in sessions:
            session.append(Message.user(_SECRET, id="s"))
        report = sessions[0].erase("s")
        assert report.erased_in == (sessions[0].id,)
        self.check_proof(report.scan)
        assert [texts(session) for session in sessions] == [[""], [_SECRET]]

    def test_the_twin_erases_as_well(self, store: Store, session: Session) -> None:
        """The async twin returns the same report."""
        session.append(*parse_conversation("u a"))

        async def work() -> None:
            twin = await AsyncStore(store).get(session.id)
            assert (await twin.erase(2)).places == 1

        asyncio.run(work())
        assert texts(session) == ["u1", ""]
