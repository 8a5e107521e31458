"""Reading exactly what is asked for: one message by its id, up to a position, by role."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.errors import AmbiguousRef, BadMessage, BadQuery, MessageNotFound
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import JSON, Head, Message, Role

_HIDDEN: dict[str, JSON] = {"hidden": True}


class MessageReadTests(StoreFixtures):
    """`message`, and `messages` with `upto`, `role` and `hidden`."""

    # ------------------------------------------------------------------------------ by its id

    @pytest.mark.parametrize("name", ["1", "a\0b", "\ud800", "é" * 2000, "x" * 1000, "x" * 1001])
    def test_a_message_is_found_by_its_id(self, store: Store, session: Session, name: str) -> None:
        """Whatever the id is; as `messages` returns it."""
        given = Message.user("found", id=name, metadata={"n": 1})
        session.append(Message.user("before"), given, Message.user("behind"))
        store.session("other").append(Message.user("elsewhere", id="another"))
        again = self.reopen(store)
        found = again.get(session.id).message(name)
        assert found == again.get(session.id).messages()[1]
        owner, same = again.message(name)
        assert (owner.id, same) == (session.id, found)

    @pytest.mark.parametrize("name", ["", 3, None, "x" * 5000])
    def test_an_id_that_is_none_is_refused(
        self,
        store: Store,
        session: Session,
        name: Any,  # noqa: ANN401
    ) -> None:
        """The field is named."""
        for read in (session.message, store.message):
            with pytest.raises(BadMessage, match="id"):
                read(name)

    def test_a_message_that_is_not_there(self, store: Store, session: Session) -> None:
        """Of another session, or of none: the error names it."""
        session.append(Message.user("a"))
        store.session("other").append(Message.user("b", id="b"))
        with pytest.raises(MessageNotFound, match="'b'"):
            session.message("b")
        with pytest.raises(MessageNotFound, match="'c'"):
            store.message("c")

    def test_a_message_of_an_abandoned_branch(self, store: Store, session: Session) -> None:
        """The current history comes first, then the other branches, newest first."""
        session.append(Message.user("1", id="a"), Message.user("2", id="b"))
        session.rewind(1)
        session.append(Message.user("3", id="c"))
        session.replace([Message.user("4", id="b")])
        session.replace([Message.user("5", id="d")])
        assert {name: session.message(name).text for name in "abcd"} == {
            "a": "1", "b": "4", "c": "3", "d": "5",
        }  # fmt: skip
        assert [store.message(name)[1].text for name in "abcd"] == ["1", "4", "3", "5"]
        session.replace([Message.user("6", id="b")])
        assert session.message("b").text == "6"

    def test_a_shared_message_belongs_to_its_writer(self, store: Store, session: Session) -> None:
        """Not to the forks; each fork reads it as its own."""
        session.append(*parse_conversation("u a u"))
        first = session.messages()[0]
        fork = session.fork(at=2)
        fork.append(Message.user("own", id="own"))
        assert fork.message(first.id) == first
        assert store.message(first.id)[0].id == session.id
        assert store.message("own")[0].id == fork.id
        with pytest.raises(MessageNotFound):
            session.message("own")
        with pytest.raises(MessageNotFound):
            fork.message(session.messages()[2].id)

    def test_a_fork_that_wrote_it_again_does_not_take_it(
        self, store: Store, session: Session
    ) -> None:
        """With `replace`, its history has the same id once more."""
        session.append(Message.user("1", id="a"), Message.user("2", id="b"))
        fork = session.fork(at=1)
        fork.replace([Message.user("0"), *session.messages()])
        owner, message = store.message("b")
        assert (owner.id, message.seq) == (session.id, 2)
        assert fork.message("b").seq == 3

    def test_the_same_id_in_unrelated_sessions_is_ambiguous(self, store: Store) -> None:
        """The candidates are named, and none is guessed."""
        for key in ("one", "two"):
            store.session(key).append(Message.user(key, id="m"))
        with pytest.raises(AmbiguousRef) as caught:
            store.message("m")
        assert {one.key for one in caught.value.candidates} == {"one", "two"}
        assert store.get("one").id in str(caught.value)
        assert store.session("two").message("m").text == "two"
        store.trash(store.get("one").id)
        assert store.message("m")[0].key == "two"

    def test_many_with_the_same_id(self, store: Store) -> None:
        """The error names some of them."""
        for n in range(25):
            store.session(str(n)).append(Message.user("x", id="m"))
        with pytest.raises(AmbiguousRef, match="and more"):
            store.message("m")

    def test_a_message_of_a_trashed_session(self, store: Store, session: Session) -> None:
        """It is not found, unless a fork shares it; then it is the fork's."""
        session.append(Message.user("1", id="a"), Message.user("2", id="b"))
        fork = session.fork(at=1)
        store.trash(session.id)
        assert store.message("a")[0].id == fork.id
        with pytest.raises(MessageNotFound):
            store.message("b")
        assert session.message("b").text == "2"
        store.purge(session.id)
        owner, message = store.message("a")
        assert (owner.id, message.text) == (fork.id, "1")
        with pytest.raises(MessageNotFound):
            store.message("b")
        store.purge(fork.id)
        with pytest.raises(MessageNotFound):
            store.message("a")

    def test_forks_that_share_a_trashed_session(self, store: Store, session: Session) -> None:
        """Neither is guessed; the one that the other comes from is meant."""
        session.append(Message.user("1", id="a"))
        one = session.fork()
        two = one.fork()
        store.trash(session.id)
        assert store.message("a")[0].id == one.id
        three = session.fork()
        with pytest.raises(AmbiguousRef) as caught:
            store.message("a")
        assert {found.id for found in caught.value.candidates} == {one.id, three.id}
        assert two.message("a").text == "1"

    def test_a_fork_shares_what_comes_before_its_start(
        self, store: Store, session: Session
    ) -> None:
        """A message behind it belongs to a fork that starts later."""
        session.append(Message.user("1", id="a"), Message.user("2", id="b"))
        session.fork(at=1)
        later = session.fork(at=2)
        store.trash(session.id)
        assert store.message("b")[0].id == later.id

    def test_an_erased_message_is_found_as_a_tombstone(
        self, store: Store, session: Session
    ) -> None:
        """Its id stays."""
        session.append(Message.user("secret", id="a"))
        session.erase("a")
        assert (session.message("a").status, session.message("a").text) == ("erased", "")
        assert store.message("a")[1].status == "erased"

    def test_a_message_of_another_tenant(self) -> None:
        """It is unknown, and makes no id ambiguous."""
        self.need_persistence()
        mine, theirs = self.open(tenant="mine"), self.open(tenant="theirs")
        theirs.session("s").append(Message.user("theirs", id="a"))
        with pytest.raises(MessageNotFound):
            mine.message("a")
        mine.session("s").append(Message.user("mine", id="a"))
        assert mine.message("a")[1].text == "mine"

    # ------------------------------------------------------------------------ up to a position

    def test_upto_is_the_last_one(self, session: Session) -> None:
        """As a seq, an id or a head; combined with the other limits."""
        session.append(*(Message.user(str(n), id=f"m{n}") for n in range(1, 11)))
        for upto in (6, "m6", Head(1, 6)):
            assert [m.seq for m in session.messages(upto=upto)] == [1, 2, 3, 4, 5, 6]
            assert [m.seq for m in session.messages(upto=upto, limit=2)] == [5, 6]
            assert [m.seq for m in session.messages(upto=upto, after=4)] == [5, 6]
            assert [m.seq for m in session.messages(upto=upto, after=1, limit=2)] == [5, 6]
            assert [m.seq for m in session.messages(upto=upto, before=3)] == [1, 2]
            assert [m.seq for m in session.messages(upto=upto, before=9, limit=1)] == [6]
            assert [m.seq for m in session.messages(upto=upto, branch=1, limit=1)] == [6]
        assert session.messages(upto=0) == []
        assert len(session.messages(upto=10)) == 10

    def test_upto_a_message_of_another_branch(self, session: Session) -> None:
        """Its own history is read; a branch that is passed must be the same."""
        session.append(*(Message.user(str(n), id=f"m{n}") for n in range(1, 5)))
        session.rewind(2)
        session.append(Message.user("other", id="other"))
        for upto in ("m4", Head(1, 4)):
            assert [m.text for m in session.messages(upto=upto)] == ["1", "2", "3", "4"]
            assert [m.text for m in session.messages(upto=upto, branch=1, limit=2)] == ["3", "4"]
            with pytest.raises(BadQuery, match="upto"):
                session.messages(upto=upto, branch=2)
        assert [m.text for m in session.messages(upto=4, branch=1)] == ["1", "2", "3", "4"]
        assert [m.text for m in session.messages(upto="other")] == ["1", "2", "other"]
        assert [m.text for m in session.messages(upto="m2", branch=2)] == ["1", "2"]

    @pytest.mark.parametrize("upto", [11, "nobody", Head(1, 11), Head(2, 1)])
    def test_upto_a_message_that_is_not_there(
        self,
        session: Session,
        upto: Any,  # noqa: ANN401
    ) -> None:
        """It is not taken for the last one."""
        session.append(*(Message.user(str(n)) for n in range(10)))
        with pytest.raises(MessageNotFound):
            session.messages(upto=upto)

    # ---------------------------------------------------------------------- roles and hidden ones

    @pytest.mark.parametrize("length", [1, 70])
    def test_messages_of_some_roles(self, session: Session, length: int) -> None:
        """With `limit` the newest of them, with `after` the next; however many lie between."""
        for _ in range(length):
            session.append(*parse_conversation("s u +x -x a"))
        session.summarize("so far")
        every = session.messages()
        for role in get_args(Role):
            wanted = [m for m in every if m.role == role]
            later = [m for m in wanted if (m.seq or 0) > 2]
            assert session.messages(role=role) == wanted
            assert session.messages(role=[role], limit=3) == wanted[-3:]
            assert session.messages(role=role, after=2, limit=2) == later[:2]
        both = [m for m in every if m.role in {"user", "tool"}]
        assert session.messages(role=("user", "tool")) == both
        assert session.messages(role=("user", "tool"), upto=4, limit=9) == both[:2]
        assert session.messages(role="user", limit=0) == []
        assert session.messages(role="user", before=2) == []

    @pytest.mark.parametrize("between", [0, 100])
    def test_hidden_messages(self, session: Session, between: int) -> None:
        """Those whose metadata has `hidden` set; a role may be asked for as well."""
        others = [Message.assistant("shown", metadata={"hidden": False}) for _ in range(between)]
        session.append(
            Message.user("1", metadata=_HIDDEN),
            Message.user('"hidden"'),
            *others,
            Message.assistant("3", metadata={"hidden": "yes", "x": "\ud800"}),
            Message.user("4", metadata={"command": True}),
        )
        every = session.messages()
        hidden = [every[0], every[-2]]
        assert session.messages(hidden=True) == hidden
        assert session.messages(hidden=True, limit=1) == hidden[-1:]
        assert session.messages(hidden=True, role="user") == hidden[:1]
        assert session.messages(hidden=False) == [m for m in every if m not in hidden]
        assert [m.text for m in session.messages(hidden=False, limit=1)] == ["4"]
        assert session.messages(hidden=None) == every

    def test_roles_across_a_fork(self, session: Session) -> None:
        """A history is read through the branches that it is made of."""
        session.append(*parse_conversation("u a u a"))
        fork = session.fork(at=3)
        fork.append(*parse_conversation("a u"))
        assert [m.seq for m in fork.messages(role="user")] == [1, 3, 5]
        assert [m.seq for m in fork.messages(role="user", limit=2)] == [3, 5]
        assert [m.seq for m in fork.messages(role="assistant", upto=3)] == [2]
        assert texts(fork)[:3] == texts(session)[:3]

    @pytest.mark.parametrize("role", ["", "User", 3, [], ["user", "robot"], b"user", ["user", 3]])
    def test_a_role_that_is_none_is_refused(
        self,
        session: Session,
        role: Any,  # noqa: ANN401
    ) -> None:
        """`BadQuery` lists those that there are."""
        with pytest.raises(BadQuery, match=r"role: .*assistant"):
            session.messages(role=role)

    @pytest.mark.parametrize("hidden", [1, "yes"])
    def test_hidden_is_true_or_false(
        self,
        session: Session,
        hidden: Any,  # noqa: ANN401
    ) -> None:
        """Or not given."""
        with pytest.raises(BadQuery, match="hidden"):
            session.messages(hidden=hidden)
