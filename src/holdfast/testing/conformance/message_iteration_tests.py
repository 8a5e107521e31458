"""Iterating over a history in pages: all of it, as it was, whatever is written meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.aio import AsyncSession
from holdfast.errors import BadQuery, MessageNotFound, SessionNotFound, StoreUnavailable
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message

_MANY = 700  # messages: several pages


def _fill(session: Session, number: int = _MANY) -> list[Message]:
    """Append messages, every third by the assistant and every tenth hidden; return them."""
    roles = ("user", "user", "assistant")
    session.append(
        *(
            Message(role=roles[n % 3], parts=(), metadata={"n": n, "hidden": n % 10 == 0})  # type: ignore[arg-type]
            for n in range(number)
        )
    )
    return session.messages()


class MessageIterationTests(StoreFixtures):
    """`iter_messages`, beside `messages` without a limit."""

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"after": 31},
            {"before": 34},
            {"after": 32, "before": 650},
            {"after": 699},
            {"after": 9_999},
            {"before": 1},
            {"upto": 333},
            {"upto": 333, "before": 100, "after": 3},
            {"branch": 1},
            {"role": "assistant"},
            {"role": ["user", "tool"], "hidden": False, "after": 40},
            {"role": "tool"},
            {"hidden": True, "upto": 500},
        ],
    )
    def test_it_reads_what_messages_reads(self, session: Session, arguments: Any) -> None:  # noqa: ANN401
        """Each once and in order; both twins."""
        _fill(session)
        expected = session.messages(**arguments)
        assert list(session.iter_messages(**arguments)) == expected

        async def read() -> list[Message]:
            twin = AsyncSession(session)
            return [message async for message in twin.iter_messages(**arguments)]

        assert asyncio.run(read()) == expected

    def test_an_empty_history_has_no_messages(self, session: Session) -> None:
        """It ends at once."""
        assert list(session.iter_messages()) == []

    def test_a_history_of_several_branches_and_sessions(self, session: Session) -> None:
        """It is read through those that it is made of; another branch can be named."""
        whole = _fill(session, 200)
        session.rewind(100)
        session.append(*(Message.user(str(n)) for n in range(100)))
        fork = session.fork(at=150)
        fork.append(*(Message.user(str(n)) for n in range(100)))
        for one in (session, fork):
            assert list(one.iter_messages()) == one.messages()
        assert list(session.iter_messages(branch=1)) == whole
        assert list(session.iter_messages(upto=whole[-1].id)) == whole

    @pytest.mark.parametrize(
        "write",
        [
            lambda session: session.append(*(Message.user("later") for _ in range(50))),
            lambda session: session.rewind(10),
            lambda session: session.undo(),
            lambda session: session.clear(),
            lambda session: session.replace([Message.user("other")]),
            lambda session: session.summarize("so far"),
            lambda session: session.amend(_MANY, "in other words"),
            lambda session: (session.rewind(5), session.append(Message.user("later"))),
        ],
    )
    def test_what_is_written_meanwhile_does_not_change_it(
        self, store: Store, session: Session, write: Callable[[Session], object]
    ) -> None:
        """The history is the one that the first message was read from, to its end."""
        _fill(session)
        with session.turn() as turn:
            turn.user("last")
        expected = session.messages()
        found = session.iter_messages()
        first = next(found)
        write(session)
        assert [first, *found] == expected
        assert store.damage == []

    def test_it_begins_with_the_first_message(self, session: Session) -> None:
        """What is written between the call and the first message is read."""
        found = session.iter_messages()
        session.append(Message.user("a"))
        assert [message.text for message in found] == ["a"]

    def test_a_message_erased_meanwhile_is_a_tombstone(self, session: Session) -> None:
        """Its text is not read any more."""
        _fill(session)
        found = session.iter_messages()
        next(found)
        session.erase(_MANY)
        *_, last = found
        assert (last.seq, last.status) == (_MANY, "erased")

    def test_a_session_purged_meanwhile_is_not_found(self, store: Store, session: Session) -> None:
        """It is no shorter history, and no damage."""
        _fill(session)
        found = session.iter_messages()
        next(found)
        store.purge(session.id)
        with pytest.raises(SessionNotFound):
            list(found)
        assert store.damage == []

    def test_a_store_closed_meanwhile_reads_nothing(self, store: Store, session: Session) -> None:
        """It is no shorter history."""
        _fill(session)
        found = session.iter_messages()
        next(found)
        store.close()
        with pytest.raises(StoreUnavailable):
            list(found)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"before": -1},
            {"after": "3"},
            {"branch": 0},
            {"role": "robot"},
            {"hidden": 1},
            {"upto": 1.5},
        ],
    )
    def test_an_argument_that_is_none_is_refused_at_once(
        self, session: Session, arguments: dict[str, Any]
    ) -> None:
        """Before anything is read, by both twins."""
        (field,) = arguments
        for one in (session, AsyncSession(session)):
            with pytest.raises(BadQuery, match=field):
                one.iter_messages(**arguments)

    def test_a_place_that_is_not_there(self, session: Session) -> None:
        """It is not taken for the end."""
        session.append(Message.user("a"))
        with pytest.raises(BadQuery, match="branch"):
            next(session.iter_messages(branch=2))
        with pytest.raises(MessageNotFound):
            next(session.iter_messages(upto="nobody"))
