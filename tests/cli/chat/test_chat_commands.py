"""Every command of a chat: what it does to the session, and what it says."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Unpack

import pytest

import holdfast
from holdfast import Goal, Message
from holdfast.aio.session import AsyncSession
from holdfast.aio.turn import AsyncTurn
from holdfast.cli.chat import save_points, slash_commands
from holdfast.cli.chat.controller import StartOptions
from holdfast.cli.chat.slash_commands import COMMANDS
from holdfast.errors import ModelFailed
from holdfast.testing.scripted_model import Hold, Pause, Step, call, say
from holdfast.values import Head, Provenance, SessionChanges, SessionInfo, Usage
from tests.cli.chat.recorded_chat import Sitting, sitting

_WANTED = (
    "help new sessions session save rewind resume fork undo redo retry title goal compact history "
    "search window model usage export status stop exit"
)


def _sat(story: Callable[[Sitting], Awaitable[None]], *scripts: list[Step]) -> holdfast.Store:
    """Play a story at a chat that is open; give the store."""
    store = holdfast.open("memory:")

    async def play() -> None:
        async with sitting(store, *scripts) as sat:
            await sat.open()
            await story(sat)

    with store:
        asyncio.run(play())
    return store


def test_the_commands_are_these_and_help_tells_of_each() -> None:
    assert sorted(COMMANDS) == sorted(_WANTED.split(" "))

    async def story(sat: Sitting) -> None:
        told = await sat.enter("/help")
        for command in COMMANDS.values():
            assert re.search(
                rf"^  /{command.name}\b.*{re.escape(command.help)}$", told, re.MULTILINE
            )
        assert "Ctrl-C" in told
        alone = await sat.enter("/help undo")
        assert "/undo [N]" in alone
        assert "/redo  " not in alone

    _sat(story)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/help", ("help", "")),
        ("/Title  a  b ", ("title", "a  b")),
        ("/goal one\ntwo", ("goal", "one\ntwo")),
        ("/", ("", "")),
        ("/?", ("?", "")),
        ("/etc/hosts is strange", None),
        ("//help", None),
        ("help", None),
        ("/2 of them", None),
    ],
)
def test_what_is_a_command(text: str, meant: tuple[str, str] | None) -> None:
    """A path is none, and two slashes say that it is none."""
    assert slash_commands.parse(text) == meant


@pytest.mark.parametrize(
    ("name", "near"), [("histroy", "history"), ("sesions", "session"), ("xyzzy", None)]
)
def test_an_unknown_command_says_the_nearest(name: str, near: str | None) -> None:
    said = slash_commands.unknown_command(name)
    assert said.startswith(f"there is no /{name}; ")
    assert ("did you mean" in said) == (near is not None)
    assert near is None or f"/{near}" in said
    assert said.endswith("/help lists all")


def test_a_message_with_two_slashes_is_said_with_one() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("//help me")
        session = await sat.talk.context.ensure_session()
        assert (await session.messages())[0].text == "/help me"

    _sat(story, say("yes"))


def test_before_anything_is_said_there_is_no_session() -> None:
    """Commands that look at one say so, and leave nothing behind."""

    async def story(sat: Sitting) -> None:
        for name in ("undo", "redo", "retry", "fork", "save a", "history", "usage", "window"):
            assert "the conversation is empty" in await sat.enter(f"/{name}")
        assert "session   none yet" in await sat.enter("/status")
        assert not (await sat.talk.context.store.sessions()).items

    _sat(story)


def test_new_begins_a_session_and_keeps_the_other() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        first = await sat.talk.context.ensure_session()
        told = await sat.enter("/new")
        assert f"/resume {first.id}" in told
        await sat.enter("two")
        second = await sat.talk.context.ensure_session()
        assert second.id != first.id
        info = await second.info()
        assert (info.parent, info.relation) == (first.id, "reset")
        assert [m.text for m in await second.messages()] == ["two", "B"]
        assert "continuing 'one', just now, 1 turn" in await sat.enter(f"/resume {first.id}")
        assert (await sat.talk.context.ensure_session()).id == first.id
        assert "the session you are in" in await sat.enter(f"/resume {first.id}")
        assert "no session" in (await sat.enter("/resume nobody")).lower()

    _sat(story, say("A"), say("B"))


def test_sessions_goes_to_the_one_that_is_chosen() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        first = await sat.talk.context.ensure_session()
        await sat.enter("/new")
        await sat.enter("two")
        sat.picks += [None, first.id]
        await sat.enter("/sessions")
        assert (await sat.talk.context.ensure_session()).id != first.id
        await sat.enter("/sessions")
        assert (await sat.talk.context.ensure_session()).id == first.id

    _sat(story, say("A"), say("B"))


def test_undo_redo_rewind_and_saved_points() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        session = await sat.talk.context.ensure_session()
        assert "message 2 is saved as 'first try'" in await sat.enter("/save first try")
        await sat.enter("two")
        assert "took back 2 messages" in await sat.enter("/undo")
        assert len(await session.messages()) == 2
        assert "it ends with message 4: assistant: B" in await sat.enter("/redo")
        assert "nothing to redo" in await sat.enter("/redo")
        assert "first try" in await sat.enter("/rewind")
        await sat.enter("/rewind first try")
        assert len(await session.messages()) == 2
        await sat.enter("/redo")
        await sat.enter("/rewind #1")
        assert len(await session.messages()) == 1
        assert "there is no message 9" in await sat.enter("/rewind 9")
        assert "is not a number" in await sat.enter("/undo x")
        assert "it is empty now" in (await sat.enter("/undo")).replace("the conversation", "it")

    _sat(story, say("A"), say("B"))


def test_a_point_survives_a_restart_and_a_fork_can_start_there(tmp_path: Path) -> None:
    async def first(store: holdfast.Store) -> str:
        async with sitting(store, say("A"), say("B")) as sat:
            await sat.open()
            await sat.enter("one")
            await sat.enter("/save here")
            await sat.enter("two")
            return (await sat.talk.context.ensure_session()).id

    async def second(store: holdfast.Store, id: str) -> None:
        async with sitting(store, say("C")) as sat:
            await sat.open(StartOptions(fork=id, at="here"))
            fork = await sat.talk.context.ensure_session()
            assert [m.text for m in await fork.messages()] == ["one", "A"]
            await sat.enter("three")
            assert len(await fork.messages()) == 4

    with holdfast.open(tmp_path / "a.db") as store:
        id = asyncio.run(first(store))
    with holdfast.open(tmp_path / "a.db") as store:
        asyncio.run(second(store, id))
        assert len(store.get(id).messages()) == 4


class _SavedElsewhere(AsyncSession):
    """A session in which another chat saves a point just when this one is about to."""

    meddle = True

    async def update(
        self, *, expect: Head | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        if self.meddle:
            self.meddle = False
            await save_points.save(self, "theirs")
        return await super().update(expect=expect, **changes)


def test_points_that_two_chats_save_at_once_are_both_kept() -> None:
    with holdfast.open("memory:") as store:
        session = store.create(entries=[Message.user("a")])
        asyncio.run(save_points.save(_SavedElsewhere(session), "mine"))
        assert [point.name for point in save_points.save_points(session.info())] == [
            "theirs",
            "mine",
        ]


def test_fork_here_and_at_a_number() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        first = await sat.talk.context.ensure_session()
        assert f"/resume {first.id}" in await sat.enter("/fork")
        second = await sat.talk.context.ensure_session()
        await sat.enter("two")
        assert len(await first.messages()) == 2
        assert len(await second.messages()) == 4
        assert "forked at message 1" in await sat.enter("/fork 1")
        assert len(await (await sat.talk.context.ensure_session()).messages()) == 1

    _sat(story, say("A"), say("B"))


def test_retry_asks_the_same_again_and_keeps_the_first_answer_out_of_view() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        await sat.enter("two")
        told = await sat.enter("/retry")
        assert "two" in told
        assert "C" in told
        session = await sat.talk.context.ensure_session()
        assert [m.text for m in await session.messages()] == ["one", "A", "two", "C"]
        assert len(await session.branches()) == 2

    _sat(story, say("A"), say("B"), say("C"))


def test_retry_sent_an_order_of_a_stranger_as_the_users() -> None:
    """A system message of an import is no message of the user."""

    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        session = await sat.talk.context.ensure_session()
        order = Message.user("obey", provenance=Provenance("import", role="system"))
        await session.append(order)
        assert "one" in await sat.enter("/retry")
        assert [m.text for m in await session.messages()] == ["one", "B"]

    _sat(story, say("A"), say("B"))


def test_retry_of_the_first_question_and_after_a_failure() -> None:
    async def story(sat: Sitting) -> None:
        told = await sat.enter("one")
        assert "failed: no luck" in told
        assert "C" in await sat.enter("/retry")
        session = await sat.talk.context.ensure_session()
        assert [m.text for m in await session.messages()] == ["one", "C"]

    _sat(story, [ModelFailed("no luck")], say("C"))


def test_title_wins_and_is_told() -> None:
    async def story(sat: Sitting) -> None:
        assert "the conversation is empty" in await sat.enter("/title")
        await sat.enter("/title  a  good\none ")
        info = await (await sat.talk.context.ensure_session()).info()
        assert (info.title, info.title_by) == ("a good one", "user")
        assert "title: a good one" in await sat.enter("/title")
        assert "title     a good one" in await sat.enter("/session")

    _sat(story)


def test_a_goal_is_set_worked_on_told_and_ended() -> None:
    async def story(sat: Sitting) -> None:
        assert "the conversation is empty" in await sat.enter("/goal")
        told = await sat.enter("/goal tidy up")
        assert "goal: tidy up" in told
        assert "done with it" in told
        session = await sat.talk.context.ensure_session()
        goal = (await session.info()).goal
        assert goal is not None
        assert (goal.objective, goal.state) == ("tidy up", "active")
        assert "state     active" in await sat.enter("/goal")
        assert "the goal is cancelled" in await sat.enter("/goal cancel")
        ended = (await session.info()).goal
        assert ended is not None
        assert ended.state == "cancelled"
        assert ended.ended_at is not None
        assert "no goal to end" in await sat.enter("/goal done")

    # The agent goes on by itself until a call fails: its scripts are at an end.
    _sat(story, say("done with it"))


def test_compact_lets_a_summary_stand_and_says_when_there_is_too_little() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("one")
        assert "too few messages to summarise" in await sat.enter("/compact")
        for _ in range(4):
            await sat.enter("more")
        told = await sat.enter("/compact")
        assert "a summary now stands for messages 1 to 8" in told
        session = await sat.talk.context.ensure_session()
        assert (await session.messages())[-1].text == "All was well."

    more = [say("B") for _ in range(4)]
    _sat(story, say("A"), *more, say("All was well."))


def test_history_search_window_usage_status_and_session() -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter("Where is my parcel?")
        history = await sat.enter("/history")
        assert "#1 user" in history
        assert "#2 assistant" in history
        last = await sat.enter("/history 1")
        assert "#1 user" not in last
        assert "1 earlier message: /history 2 shows all" in last
        found = await sat.enter("/search parcel")
        assert "#1 user" in found
        assert "Where is my parcel?" in found
        assert "nothing found" in await sat.enter("/search nowhere")
        assert "missing search terms" in await sat.enter("/search")
        window = await sat.enter("/window")
        assert "Where is my parcel?" in window
        assert "2 messages for openai" in window
        assert "scripted     12       3" in await sat.enter("/usage")
        status = await sat.enter("/status")
        assert "model     scripted" in status
        assert "running   nothing" in status
        assert "run       run-1" in status
        assert "2 messages, 1 turn" in await sat.enter("/session")

    _sat(story, say("In Oslo.", usage=Usage(input=12, output=3)))


_SECRET = "ghp_" + "Xq7Lw2Zt9Vb4Nc8Rm1Kd5Hs3Jf6Gp0YaEuTo"


def test_export_writes_a_file_that_can_be_imported(tmp_path: Path) -> None:
    async def story(sat: Sitting) -> None:
        await sat.enter(f"my key is {_SECRET}")
        told = await sat.enter(f"/export {tmp_path / 'out.jsonl'}")
        assert "2 messages" in told
        assert "1 secret left out" in told
        assert "already" in await sat.enter(f"/export {tmp_path / 'out.jsonl'}")

    _sat(story, say("A"))
    with holdfast.open("memory:") as store:
        assert store.import_(tmp_path / "out.jsonl", trust=True).messages == 2


def test_model_tells_switches_and_says_what_is_missing() -> None:
    async def story(sat: Sitting) -> None:
        assert "holdfast with scripted (a test wants it)" in await sat.enter("/model")
        assert "set A_KEY" in await sat.enter("/model missing")
        assert "whose model" in await sat.enter("/model nonsense")
        assert "holdfast with other" in await sat.enter("/model other")
        await sat.enter("one")
        session = await sat.talk.context.ensure_session()
        assert (await session.messages())[-1].model == "other"

    _sat(story, say("A"))


def test_exit_leaves_and_stop_says_that_nothing_runs() -> None:
    async def story(sat: Sitting) -> None:
        assert "no turn is running" in await sat.enter("/stop")
        await sat.enter("/quit")
        assert sat.left

    _sat(story)


async def _heard(sat: Sitting) -> None:
    """Wait until a turn has stored what was said, and takes nothing else."""
    while not sat.talk.running:  # noqa: ASYNC110 - nobody tells when it does
        await asyncio.sleep(0.01)
    session = await sat.talk.context.ensure_session()
    while not await session.messages():  # noqa: ASYNC110 - nobody tells when it does
        await asyncio.sleep(0.01)


def test_while_a_turn_runs_only_what_changes_nothing_is_done() -> None:
    """And what is said is queued, and answered when the turn is over."""
    looked = asyncio.Event()

    async def story(sat: Sitting) -> None:
        turn = asyncio.create_task(sat.talk.handle_line("one"))
        await _heard(sat)
        for name in ("undo", "new", "fork", "retry", "compact", "model x", "resume a", "goal b"):
            assert "is not available while a turn runs" in await sat.enter(f"/{name}")
        await sat.talk.queue("two")
        assert "queued    two" in await sat.enter("/status")
        looked.set()
        await turn
        session = await sat.talk.context.ensure_session()
        assert [m.text for m in await session.messages()] == ["one", "A", "two", "B"]
        assert sat.talk.queued == []

    _sat(story, [Hold(looked), *say("A")], say("B"))


def test_stop_ends_the_turn_and_what_is_queued_waits() -> None:
    async def story(sat: Sitting) -> None:
        turn = asyncio.create_task(sat.talk.handle_line("one"))
        await _heard(sat)
        await sat.talk.queue("two")
        await sat.enter("/stop")
        await turn
        told = sat.text()
        assert "stopped; what came so far is kept" in told
        assert "sent with your next message: two" in told
        await sat.enter("three")
        session = await sat.talk.context.ensure_session()
        assert [m.text for m in await session.messages()] == ["one", "two", "three", "B"]

    _sat(story, [Pause(60)], say("B"))


def test_what_was_said_is_kept_by_a_turn_that_is_stopped_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(sat: Sitting) -> None:
        opening = asyncio.Event()

        async def held(turn: AsyncTurn) -> None:
            opening.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(AsyncTurn, "__aenter__", held)
            sending = asyncio.create_task(sat.talk.handle_line("one"))
            await opening.wait()
            await sat.enter("/stop")
            await sending
        assert "sent with your next message: one" in sat.text()
        await sat.enter("two")
        session = await sat.talk.context.ensure_session()
        assert [m.text for m in await session.messages()] == ["one", "two", "B"]

    _sat(story, say("B"))


def test_a_busy_session_keeps_what_was_said(tmp_path: Path) -> None:
    """Another process has a turn open: the chat prints which, and queues the message."""

    async def story(store: holdfast.Store, session: holdfast.Session) -> None:
        async with sitting(store, say("A")) as sat:
            await sat.open(StartOptions(resume=session.id))
            told = await sat.enter("hello")
            assert "has an open turn" in told
            assert "your message is kept" in told

    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "a.db") as other:
        session = store.session("a")
        with other.session("a").turn():
            asyncio.run(story(store, session))
        assert [item.message.text for item in session.queued()] == ["hello"]


def test_a_tool_that_asks_is_allowed_refused_and_remembered() -> None:
    async def story(sat: Sitting) -> None:
        sat.answers += ["y", "not to them", "a"]
        assert "sent to A" in await sat.enter("one")
        assert "? send  send to A" not in (told := await sat.enter("two"))
        assert "not to them" in told
        await sat.enter("three")
        await sat.enter("four")
        assert len(sat.asked) == 3
        session = await sat.talk.context.ensure_session()
        results = [m.text for m in await session.messages() if m.role == "tool"]
        assert results == ["sent to A", "not run: not to them", "sent to C", "sent to D"]

    scripts = [(call("send", {"to": who}), say("ok")) for who in "ABCD"]
    _sat(story, *(step for pair in scripts for step in pair))


def test_without_anybody_to_ask_a_tool_is_refused() -> None:
    async def play(store: holdfast.Store) -> None:
        async with sitting(store, call("send", {"to": "A"}), say("ok"), interactive=False) as sat:
            sat.answers += [None]
            await sat.open()
            assert "no user is present" in await sat.enter("one")

    with holdfast.open("memory:") as store:
        asyncio.run(play(store))


# ------------------------------------------------------------------------------------- opening


def _opened(
    prepare: Callable[[holdfast.Store], None],
    wanted: StartOptions | None = None,
    *,
    scope: str | None = None,
) -> tuple[str, str | None]:
    """What a chat says when it opens over such a store, and which session it is in."""

    async def play(store: holdfast.Store) -> tuple[str, str | None]:
        async with sitting(store, scope=scope) as sat:
            told = await sat.open(wanted)
            session = sat.talk.context.session
            return told, None if session is None else (await session.info()).key

    with holdfast.open("memory:") as store:
        prepare(store)
        return asyncio.run(play(store))


def _two(store: holdfast.Store) -> None:
    here, elsewhere = str(Path.cwd()), "/elsewhere"
    for key, cwd, scope in (("a", here, None), ("b", here, "desk"), ("c", elsewhere, None)):
        session = store.session(key, cwd=cwd, scope=scope)
        with session.turn() as turn:
            turn.user(f"asked in {key}")
            turn.assistant(f"answered in {key}")


def test_the_latest_session_of_this_directory_goes_on() -> None:
    told, key = _opened(_two)
    assert key == "b"
    assert "continuing 'b', just now, 1 turn; /new for a fresh one" in told
    assert "asked in b" in told
    assert "answered in b" in told


def test_new_resume_scope_and_chain_choose_another() -> None:
    assert _opened(_two, StartOptions(new=True))[1] is None
    assert _opened(_two, StartOptions(resume="a"))[1] == "a"
    assert _opened(_two, scope="desk")[1] == "b"
    told, key = _opened(_two, scope="nobody")
    assert key is None
    assert "a new conversation" in told
    told, key = _opened(_two, StartOptions(resume="c"))
    assert "/elsewhere, where it was started, does not exist; tools work in" in told


def test_chain_begins_a_session_of_its_own_behind_the_latest() -> None:
    async def play(store: holdfast.Store) -> None:
        async with sitting(store, say("A")) as sat:
            assert "continuing 'b'" in await sat.open(StartOptions(chain=True))
            session = await sat.talk.context.ensure_session()
            info = await session.info()
            assert (info.parent, info.relation) == (store.get("b").id, "continue")
            await sat.enter("and on")
            assert len(await session.messages()) == 4
            assert [turn.run_id for turn in await session.turns()] == ["run-1"]

    with holdfast.open("memory:") as store:
        _two(store)
        asyncio.run(play(store))
        assert len(store.get("b").messages()) == 2


def test_an_active_goal_and_queued_input_are_told() -> None:
    def prepare(store: holdfast.Store) -> None:
        _two(store)
        store.get("b").update(goal=Goal("tidy up"))
        store.get("b").enqueue("and this?")

    told, _ = _opened(prepare)
    assert "goal: tidy up" in told
    assert "queued for your next message: and this?" in told


def test_a_long_answer_is_cut_in_the_recap() -> None:
    def prepare(store: holdfast.Store) -> None:
        session = store.session("a", cwd=str(Path.cwd()))
        session.append(
            Message.user("q"), Message.assistant("\n".join(f"line {n}" for n in range(99)))
        )

    told, _ = _opened(prepare)
    assert "line 3 …" in told
    assert "line 4" not in told


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("c", ["one", "hal", "Go on where you were interrupted.", "A"]),
        ("r", ["one", "A"]),
        ("d", []),
        ("", ["one", "hal"]),
        ("why?", ["one", "hal", "why?", "A"]),
    ],
)
def test_after_a_crash_one_chooses(tmp_path: Path, answer: str, left: list[str]) -> None:
    """Continue, retry, drop, leave it, or say something; nothing that was stored is lost."""
    here = str(Path.cwd())
    _crash(tmp_path / "a.db", here)

    async def play(store: holdfast.Store) -> None:
        async with sitting(store, say("A")) as sat:
            sat.answers += [answer]
            told = await sat.open()
            assert "The last turn was interrupted" in told
            assert "3 characters of the reply: “…hal”" in told
            session = await sat.talk.context.ensure_session()
            assert [m.text for m in await session.messages()] == left
            assert [m.text for m in await session.messages(branch=1)][:2] == ["one", "hal"]

    with holdfast.open(tmp_path / "a.db") as store:
        asyncio.run(play(store))


def test_a_tool_whose_outcome_is_unknown_is_told(tmp_path: Path) -> None:
    _crash(tmp_path / "a.db", str(Path.cwd()), tools=True)

    async def play(store: holdfast.Store) -> None:
        async with sitting(store, interactive=False) as sat:
            told = await sat.open()
            assert "unknown  send: started, but its outcome is not known" in told
            assert "not run  notify" in told

    with holdfast.open(tmp_path / "a.db") as store:
        asyncio.run(play(store))


_CRASHES = """
import sys, os, holdfast
from holdfast import ToolCall
store = holdfast.open(sys.argv[1])
with store.session("a", cwd=sys.argv[2]).turn() as turn:
    turn.user("one")
    if sys.argv[3] == "tools":
        turn.assistant("Now.", tool_calls=[ToolCall("c1", "send"), ToolCall("c2", "notify")])
        turn.tool_started("c1")
    else:
        reply = turn.stream()
        reply.write("hal")
        reply.flush()
    os.kill(os.getpid(), 9)
"""


def _crash(path: Path, cwd: str, *, tools: bool = False) -> None:
    """A process that dies in the middle of a turn."""
    command = [sys.executable, "-c", _CRASHES, str(path), cwd, "tools" if tools else "text"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
