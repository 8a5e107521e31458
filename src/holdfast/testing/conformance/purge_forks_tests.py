"""Purge with `forks="erase"`: content is erased in forks as well; role and time are kept."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import pytest

from holdfast.errors import IdConflict
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, texts
from holdfast.testing.conformance.fixtures import StoreFixtures, drain
from holdfast.values import File, Head, Message, ToolCall, Usage

_FILE = b"a file" * 100


class PurgeForkTests(StoreFixtures):
    """Tombstones."""

    def test_erasing_leaves_tombstones_in_forks(self, store: Store, session: Session) -> None:
        """Role and time of shared messages stay, their content is erased; the fork's own stays."""
        with session.turn(model="m") as turn:
            turn.add(Message.user(["secret", File(data=_FILE)], name="n", metadata={"x": 1}))
            turn.assistant("secret", usage=Usage(5), tool_calls=[ToolCall("c", "tool")])
            turn.tool("c", "secret" * 20_000)
        session.append(Message.user("not shared"))
        fork = session.fork(3)
        fork.append(Message.user("own"))
        old = fork.messages()
        report = store.purge(session.id, forks="erase")
        assert (report.messages, report.kept, report.kept_for) == (4, 0, ())
        assert (report.erased_in, report.blobs) == ((fork.id,), 2)
        store = self.reopen(store)
        fork = store.get(fork.id)
        found = fork.messages()
        for stone, was in zip(found[:3], old[:3], strict=True):
            assert (stone.id, stone.seq, stone.role) == (was.id, was.seq, was.role)
            assert stone.created_at == was.created_at
            assert (stone.status, stone.parts, stone.text) == ("erased", (), "")
            assert (stone.name, stone.model, stone.usage, stone.metadata) == (None, None, None, {})
        assert found[3] == old[3]
        assert (fork.info().messages, fork.info().preview) == (4, "own")
        assert store.stats().blobs == 0
        assert store.damage == []

    def test_erasing_in_forks_of_forks(self, store: Store, session: Session) -> None:
        """The purged session's own messages are erased in every descendant, and no others."""
        session.append(Message.user("secret"), Message.assistant("secret"))
        fork = session.fork()
        fork.append(Message.user("fork's"))
        second = fork.fork()
        second.append(Message.user("second's"))
        cleared = session.fork()
        cleared.clear()
        cleared.append(Message.user("new"))
        report = store.purge(session.id, forks="erase")
        assert set(report.erased_in) == {fork.id, second.id, cleared.id}
        assert report.messages == 2
        assert texts(second) == ["", "", "fork's", "second's"]
        assert texts(cleared, branch=1) == ["", ""]
        previews = {info.id: info.preview for info in store.sessions()}
        assert previews == {fork.id: "fork's", second.id: "fork's", cleared.id: "new"}

    @pytest.mark.parametrize("middle", ["lives", "was purged"])
    def test_erasing_reaches_what_a_fork_stored_again(
        self, store: Store, session: Session, middle: str
    ) -> None:
        """A copy made by `replace` is erased as well, also in sessions that share the copy."""
        session.append(Message.user("secret"), Message.user([File(data=_FILE)]))
        fork = session.fork()
        fork.replace([Message.system("new"), *fork.messages()])
        second = fork.fork()
        second.append(Message.user("own"))
        if middle == "was purged":
            store.purge(fork.id)
        report = store.purge(session.id, forks="erase")
        assert texts(second) == ["new", "", "", "own"]
        assert second.info().preview == "own"
        assert second.id in report.erased_in
        assert store.stats().blobs == 0
        if middle == "lives":
            assert texts(fork) == ["new", "", ""]
            assert fork.info().preview is None

    def test_erasing_many_messages(self, store: Store, session: Session) -> None:
        """In several steps, from forks and from copies, with the same report and previews."""
        count = 2 * MAX_STEP_MESSAGES + 1
        session.append(*(Message.user(f"secret {n}", id=f"m{n}") for n in range(count)))
        fork = session.fork(MAX_STEP_MESSAGES + 1)
        copied = session.fork(2)
        copied.replace([Message.system("new"), *copied.messages()])
        second = copied.fork()
        second.append(Message.user("own"))
        report = store.purge(session.id, forks="erase")
        assert (report.messages, report.kept, report.kept_for) == (count, 0, ())
        assert set(report.erased_in) == {fork.id, copied.id, second.id}
        assert set(texts(fork)) == {""}
        assert (texts(copied), texts(second)) == (["new", "", ""], ["new", "", "", "own"])
        previews = {info.id: info.preview for info in store.sessions()}
        assert previews == {fork.id: None, copied.id: None, second.id: "own"}
        for one in (fork, copied, second):
            store.purge(one.id)
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.branches) == (0, 0, 0)
        assert store.verify() == []

    def test_erasing_what_no_fork_shares(self, store: Store, session: Session) -> None:
        """Where no fork shares a message it is a purge like any other."""
        session.append(*parse_conversation("u a"))
        session.fork(0)
        report = store.purge(session.id, forks="erase")
        assert (report.messages, report.erased_in, report.kept) == (2, (), 0)
        assert store.stats().messages == 0

    def test_erasing_in_the_middle(self, store: Store, session: Session) -> None:
        """A fork keeps the grandparent's messages and loses those of the purged session."""
        session.append(Message.user("first"))
        middle = session.fork()
        middle.append(Message.user("secret"))
        fork = middle.fork()
        fork.append(Message.user("last"))
        report = store.purge(middle.id, forks="erase")
        assert (report.messages, report.erased_in) == (1, (fork.id,))
        assert texts(fork) == ["first", "", "last"]
        assert texts(session) == ["first"]

    def test_erasing_what_was_kept_before(self, store: Store, session: Session) -> None:
        """A fork of a fork, whose ancestors are purged one after the other, in both modes."""
        session.append(Message.user("one"))
        middle = session.fork()
        middle.append(Message.user("two"))
        fork = middle.fork()
        fork.append(Message.user("three"))
        store.purge(session.id)
        store.purge(middle.id, forks="erase")
        assert texts(fork)[1:] == ["", "three"]
        store.purge(fork.id)
        stats = store.stats()
        assert (stats.sessions, stats.messages, stats.branches) == (0, 0, 0)

    def test_tombstones_stay_what_they_are(self, store: Store, session: Session) -> None:
        """They can be forked, rewound to, summarized and replaced with; their ids stay taken."""
        session.append(Message.user("secret", id="a"), Message.assistant("secret", id="b"))
        fork = session.fork()
        fork.append(Message.user("own"))
        store.purge(session.id, forks="erase")
        old = fork.messages()
        assert [m.status for m in fork.fork(2).messages()] == ["erased", "erased"]
        rows = store.stats().messages
        assert fork.replace(old) == Head(1, 3)
        fork.replace([*old[:2], Message.user("end")])
        assert store.stats().messages == rows + 1
        assert fork.messages()[:2] == old[:2]
        fork.replace([Message.system("new"), *old])
        assert [m.status for m in fork.messages()] == ["complete", "erased", "erased", "complete"]
        fork.rewind(2)
        fork.summarize("what was erased")
        assert fork.messages()[-1].covers == "a"
        with pytest.raises(IdConflict):
            fork.append(Message.user("secret", id="a"))
        assert fork.undo().seq == 1

    def test_a_fork_of_nothing_but_tombstones(self, store: Store, session: Session) -> None:
        """It has no preview, and can be the latest."""
        session.append(Message.user("secret"), Message.assistant("secret"))
        fork = session.fork()
        store.purge(session.id, forks="erase")
        assert fork.info().preview is None
        latest = store.latest()
        assert latest is not None
        assert latest.id == fork.id
        fork.append(Message.user("own"))
        assert fork.info().preview == "own"

    def test_the_text_is_gone_from_followers_too(self, store: Store, session: Session) -> None:
        """A follower of a fork from its start receives tombstones."""
        session.append(Message.user("secret"))
        fork = session.fork()
        fork.append(Message.user("own"))
        store.purge(session.id, forks="erase")
        assert [item.text for item in drain(fork.follow())] == ["", "own"]
