"""The async twins: the same operations, awaited; cancelling a task tears nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from decimal import Decimal
from typing import Any

import pytest

from holdfast.aio import AsyncSession, AsyncStore
from holdfast.errors import (
    BadQuery,
    Conflict,
    HeadMoved,
    IdConflict,
    KeyTaken,
    SessionBusy,
    SessionNotFound,
    TurnLost,
)
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, take_turn, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import BranchChanged, File, Goal, Head, Message, Record, ToolCall, Usage

_LONG = 30.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, with a timeout."""
    asyncio.run(asyncio.wait_for(work, _LONG))


class AsyncTwinTests(StoreFixtures):
    """`AsyncStore`, `AsyncSession`, `AsyncTurn`, `AsyncDraft`."""

    def test_the_same_operations(self, store: Store) -> None:
        """What the async side writes, the sync side reads."""

        async def work() -> None:
            twin = AsyncStore(store)
            session = await twin.session("k", title="t", metadata={"a": 1})
            await session.append(Message.user("a"))
            async with session.turn(model="m", run_id="r") as turn:
                await turn.user(["b", File(data=b"file")])
                async with turn.stream() as reply:
                    await reply.think("hm")
                    await reply.write("c")
                    await reply.tool_call("t1", "find", {"q": 1})
                    await reply.usage(Usage(1, 2), cost=Decimal("0.5"))
                    await reply.flush()
                await turn.tool_started("t1")
                await turn.tool("t1", "d")
                await turn.assistant("e")
                await turn.add(Message.system("f"))
                await session.enqueue("g")
                assert len(await session.queued()) == 1
                assert [m.text for m in await turn.take_queued()] == ["g"]
            await session.update(pinned=True)
            await self.compare(twin, session, store)

        run(work())

    def test_the_same_records(self, store: Store) -> None:
        """Stored, read, followed and dropped."""

        async def work() -> None:
            twin = AsyncStore(store)
            session = await twin.session("k")
            await session.append(Message.user("a"), Record("state", data=1))
            async with session.turn() as turn:
                stored = await turn.record("state", 2, key="k")
            assert await session.record("state", "k") == stored == store.session("k").records()[1]
            assert [one.data for one in await session.records("state", limit=1)] == [2]
            follower = session.follow(records=True)
            seen = [await anext(follower) for _ in range(3)]
            assert seen[1:] == await session.records()
            assert follower.cursor == "1.1.0.2"
            report = await session.drop(kind="state", keep=1)
            assert (report.records, report.kept) == (1, 0)
            shared = await twin.put_record(Record("app", data=3), scope="s")
            assert await twin.record("app", scope="s") == shared

        run(work())

    async def compare(self, twin: AsyncStore, session: AsyncSession, store: Store) -> None:
        """Assert that both sides return the same."""
        sync = store.session("k")
        assert [m.text for m in sync.messages()] == ["a", "b", "c", "d", "e", "f", "g"]
        assert await session.messages(limit=3) == sync.messages(limit=3)
        assert await session.head() == sync.head()
        assert await session.info() == sync.info()
        assert await session.turns() == sync.turns()
        assert await session.usage() == sync.usage()
        assert await session.queued() == []
        assert await session.recover() is None
        assert (await twin.get("t")).id == sync.id
        latest = await twin.latest()
        assert latest is not None
        assert latest.id == sync.id
        assert (await twin.sessions()).items == store.sessions().items
        page = await twin.sessions(state="done", since="1y", until="2099", order="pinned", limit=1)
        assert [info.id for info in page] == [sync.id]
        assert await twin.stats() == store.stats()
        assert await twin.verify() == []
        sha = sync.messages()[1].parts[1].sha256  # type: ignore[union-attr]
        assert await twin.blob(sha or "") == b"file"
        assert await twin.blobs(sha or "") == {sha: b"file"}
        last = sync.messages()[-1]
        assert await session.message(last.id) == last
        owner, message = await twin.message(last.id)
        assert (owner.id, message) == (sync.id, last)
        filtered = await session.messages(upto=last.id, role=["user", "system"], hidden=False)
        assert [m.text for m in filtered] == ["a", "b", "f", "g"]
        listed = await twin.sessions(metadata={"a": 1}, key_prefix="k", delegates=False)
        assert [info.id for info in listed] == [sync.id]
        await twin.flush()

    def test_the_same_load(self, store: Store) -> None:
        """Many sessions at once, skipped when they come again."""

        async def work() -> None:
            twin, told = AsyncStore(store), list[int]()
            pairs = [(f"k{n}", [Message.user("x", id=f"m{n}")]) for n in range(3)]
            report = await twin.load(pairs, progress=told.append)
            assert (report.sessions, report.messages, told) == (3, len(pairs), [3])
            assert store.load(pairs).skipped == len(pairs)
            assert (await twin.load([({"key": "k0", "scope": "s"}, [])])).sessions == 0

        run(work())

    def test_titles_that_are_awaited(self, store: Store) -> None:
        """Titles are generated as on the sync side."""

        async def make(session: AsyncSession) -> str | None:
            (message,) = await session.messages()
            return None if message.text == "b" else f"about\n{message.text}"

        async def work() -> None:
            twin = AsyncStore(store)
            for key in "abc":
                await (await twin.session(key)).append(Message.user(key))
            await (await twin.session("c")).update(title="mine")
            titled = await twin.make_titles(make, limit=3)
            assert [(info.key, info.title, info.title_by) for info in titled] == [
                ("a", "about a", "auto")
            ]
            assert (await twin.get("ABOUT A")).key == "a"

        run(work())

    def test_the_same_refusals(self, store: Store) -> None:
        """Errors are the sync side's."""

        async def work() -> None:
            twin = AsyncStore(store)
            session = await twin.create(key="k")
            await session.append(Message.user("a", id="mine"))
            with pytest.raises(HeadMoved):
                await session.append(Message.user("b"), expect=Head(1, 0))
            with pytest.raises(IdConflict):
                await session.append(Message.user("b", id="mine"))
            with pytest.raises(SessionNotFound):
                await twin.session("other", create=False)
            async with session.turn():
                with pytest.raises(SessionBusy):
                    async with session.turn(wait=0.05):
                        pass

        run(work())

    def test_takeover(self, store: Store) -> None:
        """The old holder gets `TurnLost`, and its draft is kept."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            old = await session.turn().__aenter__()
            reply = await old.stream().__aenter__()
            await reply.write("half")
            await reply.flush()
            self.expire_leases(store)
            async with session.turn() as new:
                assert new.recovered is not None
                assert new.recovered.partial is not None
                assert new.recovered.partial.text == "half"
                for write in (old.user("x"), old.tool_started("c"), old.take_queued()):
                    with pytest.raises(TurnLost):
                        await write
                await reply.write("more")
                with pytest.raises(TurnLost):
                    await reply.flush()
                with pytest.raises(TurnLost):
                    await reply.close()

        run(work())

    def test_many_tasks_at_once(self, store: Store) -> None:
        """Nothing is lost or torn, and turns take their turn."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")

            async def take(n: int) -> None:
                async with session.turn(wait=_LONG) as turn:
                    await turn.user(f"{n}")
                    await turn.assistant(f"{n}", tool_calls=[ToolCall(f"c{n}", "x")])

            await asyncio.gather(
                *(take(n) for n in range(5)),
                *(session.append(Message.system("x"), Message.system("y")) for _ in range(20)),
            )
            messages = await session.messages()
            assert len(messages) == 50  # noqa: PLR2004
            said = [m.text for m in messages if m.turn_id]
            assert said[::2] == said[1::2]
            assert sorted(said[::2]) == [str(n) for n in range(5)]

        run(work())

    def test_a_cancelled_task_cancels_its_turn(self, store: Store) -> None:
        """What was streamed is kept as partial, and the session is free."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            streaming = asyncio.Event()

            async def agent() -> None:
                async with session.turn() as turn, turn.stream() as reply:
                    await reply.write("half")
                    streaming.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(agent())
            await streaming.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [m.status for m in await session.messages()] == ["partial"]
            assert [t.state for t in await session.turns()] == ["cancelled"]

        run(work())

    @pytest.mark.parametrize("steps", range(6))
    def test_a_task_cancelled_while_it_opens_a_turn_leaves_none_open(
        self, store: Store, steps: int
    ) -> None:
        """Whenever the cancellation comes, the session is free for the next turn."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")

            async def agent() -> None:
                async with session.turn():
                    await asyncio.Event().wait()

            task = asyncio.create_task(agent())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.flush()
            async with session.turn(wait=1.0):
                pass

        run(work())

    @pytest.mark.parametrize("steps", range(6))
    def test_a_cancelled_append_is_whole_or_absent(self, store: Store, steps: int) -> None:
        """A retry with the same ids completes it."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            batch = [Message.user(str(n)) for n in range(3)]
            task = asyncio.create_task(session.append(*batch))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            store.flush()
            assert len(await session.messages()) in {0, 3}
            await session.append(*batch)
            assert [m.text for m in await session.messages()] == ["0", "1", "2"]

        run(work())

    def test_a_reply_that_was_not_entered_does_not_lose_text(self, store: Store) -> None:
        """What was flushed survives a crash, as it does on the sync side."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            turn = await session.turn().__aenter__()
            reply = turn.stream()
            await reply.write("half")
            await reply.flush()
            self.expire_leases(store)
            recovered = await session.recover()
            assert recovered is not None
            assert recovered.partial is not None
            assert recovered.partial.text == "half"

        run(work())

    def test_following(self, store: Store) -> None:
        """Messages arrive in order, each once; closing the store ends the loop."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            follower = session.follow()

            async def write() -> None:
                for n in range(10):
                    await session.append(Message.user(str(n)))

            writing = asyncio.create_task(write())
            seen = [(await anext(follower)).text for _ in range(10)]
            await writing
            assert seen == [str(n) for n in range(10)]
            assert follower.head == await session.head()
            waiting = asyncio.create_task(anext(follower, None))
            await asyncio.sleep(0)
            store.close()
            assert await waiting is None

        run(work())

    def test_the_same_movements(self, store: Store) -> None:
        """Fork, rewind, undo, redo, replace, clear and summarize, awaited."""

        async def work() -> None:
            twin = AsyncStore(store)
            session, sync = await twin.session("k"), store.session("k")
            for text in "ab":
                take_turn(sync, text)
            head = await session.head()
            assert await session.undo(expect=head) == sync.head() == Head(2, 2)
            assert await session.redo() == sync.head() == Head(3, 4)
            assert await session.rewind(1) == Head(4, 1)
            assert await session.rewind(Head(1, 4)) == Head(5, 4)
            messages = await session.messages()
            assert await session.replace([*messages[:2], Message.user("x")]) == Head(6, 3)
            assert await session.summarize("short", upto=2) == Head(6, 4)
            assert (await session.messages())[-1].covers == messages[1].id
            assert await session.clear() == Head(7, 0)
            assert await session.branches() == sync.branches()
            assert await session.messages(branch=1) == sync.messages(branch=1)
            fork = await session.fork(Head(1, 2), key="f", title="t", metadata={"x": 1})
            assert texts(store.get("f")) == ["a", "A"]
            assert await fork.lineage() == store.get("f").lineage()
            assert await session.children() == sync.children()
            with pytest.raises(HeadMoved):
                await session.undo(expect=head)
            with pytest.raises(BadQuery):
                await session.undo()

        run(work())

    def test_the_same_exact_and_whole_changes(self, store: Store) -> None:
        """Exact moves, pop, tails, amendments, and what is updated with them, awaited."""

        async def work() -> None:
            twin = AsyncStore(store)
            session = await twin.create(
                key="k", entries=parse_conversation("u +a -a a"), update={"pinned": True}
            )
            sync = store.session("k")
            assert (sync.head(), sync.info().pinned) == (Head(1, 4), True)
            popped = await session.pop(expect=Head(1, 4))
            assert popped is not None
            assert popped.text == "a4"
            assert await session.redo(update={"title": "back"}) == Head(3, 4)
            assert await session.rewind(2, exact=True, update={"model": "m"}) == Head(4, 2)
            assert await session.undo(update={"cwd": "/"}) == Head(5, 0)
            assert await session.rewind(Head(1, 4)) == Head(6, 4)
            tail = [Message.user("x")]
            assert await session.replace(tail, keep=1, update={"scope": "s"}) == Head(7, 2)
            assert await session.amend(1, "new", expect=Head(7, 2)) == Head(8, 2)
            assert texts(sync) == ["new", "x"]
            fork = await session.fork(
                Head(1, 2), exact=True, entries=tail, update={"archived": True}
            )
            assert (await fork.head(), (await fork.info()).archived) == (Head(1, 3), True)
            await session.append(Message.user("y"), update={"metadata": {"v": 1}})
            with pytest.raises(Conflict):
                await session.summarize("s", update={"expect_metadata": {"v": None}})
            with pytest.raises(HeadMoved):
                await session.update(title="t", expect=Head(1, 4))
            head = await session.clear(update={"metadata": {"v": None}})
            info = sync.info()
            assert (info.title, info.model, info.cwd, info.scope) == ("back", "m", "/", "s")
            assert (info.metadata, info.messages) == ({}, 0)
            for delete in (twin.trash, twin.purge):
                with pytest.raises(HeadMoved):
                    await delete(session.id, expect=Head(1, 4))
                await delete(session.id, expect=head)

        run(work())

    def test_the_same_summaries(self, store: Store) -> None:
        """The newest one, and how far it goes."""

        async def work() -> None:
            session, sync = await AsyncStore(store).session("k"), store.session("k")
            assert (await session.summary(), await session.covered()) == (None, 0)
            await session.append(*parse_conversation("u a u"))
            await session.summarize("short", upto=2)
            assert await session.summary() == sync.summary() == (await session.messages())[-1]
            assert await session.covered() == sync.covered() == 2  # noqa: PLR2004

        run(work())

    def test_the_same_goals(self, store: Store) -> None:
        """Changed if it is the one expected; `Conflict` otherwise, and nothing is stored."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            info = await session.update(goal=Goal("a"), expect_goal=None)
            with pytest.raises(Conflict):
                await session.update(goal=Goal("b"), title="new", expect_goal=None)
            assert await session.info() == info
            assert (await session.update(goal=None, expect_goal=Goal("a"))).goal is None

        run(work())

    def test_the_same_deletions(self, store: Store) -> None:
        """Trash, restore and purge, and lineage."""

        async def work() -> None:
            twin = AsyncStore(store)
            session = await twin.session("k")
            await session.append(Message.user("a"))
            child = await twin.create(parent=session)
            other = await twin.create(parent=session.id, relation="delegate")
            assert [m.text for m in await child.messages()] == ["a"]
            assert await other.messages() == []
            assert (await twin.trash("k")).trashed
            assert [i.id for i in await twin.sessions(trashed=True)] == [session.id]
            await twin.session("k")
            with pytest.raises(KeyTaken):
                await twin.restore(session.id)
            assert (await twin.restore(session.id, keyless=True)).key is None
            report = await twin.purge(session.id, forks="erase")
            assert report.erased_in == (child.id,)
            with pytest.raises(SessionNotFound):
                await session.messages()
            with pytest.raises(BadQuery):
                await twin.purge(child.id, forks="x")  # type: ignore[arg-type]

        run(work())

    def test_following_from_branch_to_branch(self, store: Store) -> None:
        """The follower yields the branch change."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            await session.append(*parse_conversation("u a"))
            follower = session.follow()
            seen = [await anext(follower) for _ in range(2)]
            await session.undo()
            await session.append(Message.user("again"))
            seen += [await anext(follower) for _ in range(2)]
            assert [item.text for item in seen[:2]] == ["u1", "a2"]
            assert seen[2] == BranchChanged(Head(2, 0), 0, "undo")
            assert seen[3].text == "again"
            assert follower.head == await session.head()

        run(work())

    @pytest.mark.parametrize("steps", range(6))
    def test_a_cancelled_movement_is_whole_or_absent(self, store: Store, steps: int) -> None:
        """At any time of the cancellation."""

        async def work() -> None:
            session = await AsyncStore(store).session("k")
            await session.append(*parse_conversation("u a u a"))
            new = [Message.user(str(n)) for n in range(3)]
            task = asyncio.create_task(session.replace(new))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            store.flush()
            found = [m.text for m in await session.messages()]
            assert found in (["u1", "a2", "u3", "a4"], ["0", "1", "2"])
            assert len(await session.branches()) == (1 if found[0] == "u1" else 2)

        run(work())
