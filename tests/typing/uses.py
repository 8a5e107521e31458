"""Uses of the whole API, as users write them. Only type-checked, never run.

`assert_type` says what the checker must infer; a comment that ignores an error says that the
checker must find one, because an ignore without an error is an error itself.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_type

import anthropic
import openai

import holdfast
from holdfast import (
    AsyncDraft,
    AsyncSession,
    AsyncStore,
    AsyncTurn,
    BranchChanged,
    Draft,
    File,
    Goal,
    Head,
    Message,
    Raw,
    Record,
    Session,
    Store,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    errors,
)
from holdfast.storage.protocol import Backend
from holdfast.values import (
    JSON,
    Activity,
    BackupReport,
    BranchInfo,
    BranchReason,
    Candidate,
    CopyReport,
    Damage,
    DayUsage,
    DropReport,
    EraseReport,
    ExportReport,
    Growth,
    Hit,
    IndexState,
    IndexStatus,
    Link,
    LinkState,
    LoadReport,
    MessageRef,
    ModelUsage,
    Page,
    Plan,
    PlanItem,
    Provenance,
    PurgeReport,
    QueuedInput,
    Recovered,
    Redaction,
    Relation,
    RetentionReport,
    Review,
    SalvageReport,
    Scan,
    SessionInfo,
    Stats,
    ToolRecord,
    TurnInfo,
    UsageReport,
    Window,
)


def opening() -> None:
    assert_type(holdfast.open(), Store)
    assert_type(holdfast.open("agent.db"), Store)
    assert_type(holdfast.open(Path("agent.db"), tenant="t", durability="process"), Store)
    holdfast.open(None, readonly=True)
    with holdfast.open("memory:") as store:
        assert_type(store, Store)
    holdfast.open(durability="none")  # type: ignore[arg-type]
    holdfast.open("a.db", "t")  # type: ignore[call-arg]
    holdfast.open(5)  # type: ignore[arg-type]
    holdfast.opne  # type: ignore[attr-defined]  # noqa: B018


def stores(store: Store) -> None:
    assert_type(store.url, str)
    assert_type(store.tenant, str)
    assert_type(store.backend, Backend)
    assert_type(store.damage, list[Damage])
    assert_type(store.session("k"), Session)
    store.session("k", create=False)
    described: dict[str, JSON] = {"a": [1, None, {"b": 1.5}]}
    store.session("k", scope="s", title="t", agent="a", model="m", cwd="/", metadata=described)
    assert_type(store.create(key="k", metadata={"x": True}), Session)
    assert_type(store.get("ref"), Session)
    assert_type(store.latest(scope="s", agent="a", cwd="/"), Session | None)
    page = store.sessions(scope="s", text="x", pinned=True, archived=False, limit=5, cursor=None)
    assert_type(page, Page[SessionInfo])
    lately = datetime(2026, 1, 31, tzinfo=UTC)
    store.sessions(state="interrupted", since=lately, until="7d", order="pinned")
    store.sessions(metadata={"user": "42", "n": 1}, key_prefix="slack:", delegates=False)
    store.sessions(key_prefix=3)  # type: ignore[arg-type]
    store.sessions(order="title")  # type: ignore[arg-type]
    store.sessions(state="closed")  # type: ignore[arg-type]
    assert_type(page.cursor, str | None)
    assert_type(page.items, tuple[SessionInfo, ...])
    assert_type([info.title for info in page], list[str | None])
    assert_type(len(page), int)
    assert_type(store.blob("sha"), bytes)
    assert_type(store.blobs("sha", "sha"), dict[str, bytes])
    assert_type(store.message("id"), tuple[Session, Message])
    assert_type(store.verify(), list[Damage])
    assert_type(store.salvage("to.db"), SalvageReport)
    assert_type(store.backup(Path("to.db")), BackupReport)
    assert_type(store.stats(), Stats)
    for activity in store.follow(since=3):
        assert_type(activity, Activity)
        assert_type(activity.head, Head)
    store.flush()
    store.close()
    store.session()  # type: ignore[call-arg]
    store.session("k", "title")  # type: ignore[call-arg, arg-type]
    store.session("k", colour="red")  # type: ignore[call-arg]
    store.sessions(5)  # type: ignore[call-arg, arg-type]


def searching(store: Store) -> None:
    page = store.search("red", scope="s", role="user", since="7d", until=datetime.now(UTC))
    assert_type(page, Page[Hit])
    for hit in page:
        assert_type(hit.message_id, str | None)
        assert_type(hit.seq, int | None)
        assert_type(hit.marks, tuple[tuple[int, int], ...])
        assert_type(hit.before, tuple[Message, ...])
    store.search("red", session="k", literal=True, thinking=True, all_branches=True, around=2)
    store.search("red", agent="a", limit=5, cursor=page.cursor)
    assert_type(store.index_status(), IndexStatus)
    assert_type(store.index_status().state, IndexState)
    assert_type(store.rebuild_index(progress=lambda done, total: None), IndexStatus)
    store.catch_up_index()
    assert_type(store.check_index(), list[str])
    store.search(5)  # type: ignore[arg-type]
    store.search("red", 5)  # type: ignore[call-arg, arg-type]
    store.search("red", role="nobody")  # type: ignore[arg-type]
    store.search("red", limit="5")  # type: ignore[arg-type]
    store.search("red", colour="red")  # type: ignore[call-arg]


async def searching_async(store: AsyncStore) -> None:
    assert_type(await store.search("red", limit=3), Page[Hit])
    assert_type(await store.index_status(), IndexStatus)
    assert_type(await store.rebuild_index(), IndexStatus)
    await store.catch_up_index(lambda done, total: None)
    assert_type(await store.check_index(), list[str])


def names(store: Store) -> None:
    try:
        store.get("@latest:web")
    except errors.AmbiguousRef as ambiguous:
        assert_type(ambiguous.candidates, tuple[Candidate, ...])
        told = [(one.id, one.key, one.title or one.preview) for one in ambiguous.candidates]
        assert_type(told, list[tuple[str, str | None, str | None]])
    assert_type(store.make_titles(lambda session: session.id, limit=3), list[SessionInfo])
    store.make_titles(lambda session: 5)  # type: ignore[arg-type, return-value]
    info = store.get("@pinned").info()
    assert_type((info.branches, info.forks), tuple[int, int])


def sessions(session: Session) -> None:
    assert_type(session.id, str)
    assert_type(session.key, str | None)
    assert_type(session.interrupted, bool)
    assert_type(session.info(), SessionInfo)
    head = session.head()
    assert_type(head, Head)
    assert_type(session.append(Message.user("a"), Message.user("b"), expect=head), Head)
    assert_type(session.append(), Head)
    assert_type(session.messages(limit=5, before=9, after=1, branch=1), list[Message])
    session.messages(upto="id", role="user", hidden=False)
    session.messages(upto=Head(1, 2), role=("user", "tool"))
    session.messages(role="robot")  # type: ignore[arg-type]
    assert_type(session.iter_messages(before=9, after=1, branch=1), Iterator[Message])
    for message in session.iter_messages(upto="id", role=["user", "tool"], hidden=False):
        assert_type(message, Message)
    session.iter_messages(limit=5)  # type: ignore[call-arg]
    assert_type(session.message("id"), Message)
    assert_type(session.recover(), Recovered | None)
    assert_type(session.turns(limit=3), list[TurnInfo])
    assert_type(session.enqueue("text"), QueuedInput)
    session.enqueue(["text", File(data=b"x")])
    session.enqueue(Message.user("x", id="mine"))
    assert_type(session.queued(), list[QueuedInput])
    assert_type(session.usage(), UsageReport)
    for item in session.follow(after=head):
        assert_type(item, Message | BranchChanged)
        assert_type(item.text, str)
    session.append("text")  # type: ignore[arg-type]
    session.append(Message.user("a"), expect=3)  # type: ignore[arg-type]
    session.messages(5)  # type: ignore[call-arg]


def moving(session: Session, message: Message) -> None:
    head = session.head()
    assert_type(session.fork(), Session)
    places: list[MessageRef] = [3, message.id, head]
    for place in places:
        assert_type(session.fork(place, expect=head), Session)
        assert_type(session.rewind(place, expect=head), Head)
        assert_type(session.summarize("short", upto=place, expect=head), Head)
    session.fork(at=3, key="k", title="t", cwd="/", model="m", metadata={"x": 1})
    assert_type(session.rewind(to=3), Head)
    assert_type(session.undo(), Head)
    assert_type(session.undo(2, expect=head), Head)
    assert_type(session.redo(expect=head), Head)
    assert_type(session.replace([message], expect=head), Head)
    session.replace(session.messages())
    session.replace((message, message))
    assert_type(session.clear(expect=head), Head)
    assert_type(session.summarize("short"), Head)
    assert_type(session.branches(), list[BranchInfo])
    assert_type(session.lineage(), list[Link])
    assert_type(session.children(), list[Link])
    session.rewind()  # type: ignore[call-arg]
    session.rewind(None)  # type: ignore[arg-type]
    session.rewind(1.5)  # type: ignore[arg-type]
    session.fork(3, "key")  # type: ignore[call-arg]
    session.fork(scope="s")  # type: ignore[call-arg]
    session.undo("2")  # type: ignore[arg-type]
    session.undo(expect=3)  # type: ignore[arg-type]
    session.replace(message)  # type: ignore[arg-type]
    session.replace(["text"])  # type: ignore[list-item]
    session.summarize(message)  # type: ignore[arg-type]


def following(session: Session) -> None:
    for item in session.follow():
        match item:
            case BranchChanged(head, kept, reason):
                assert_type((head, kept), tuple[Head, int])
                assert_type(reason, BranchReason)
            case Message():
                assert_type(item.id, str)
    session.follow(after=3)  # type: ignore[call-overload]


def keeping_state(store: Store, session: Session, turn: Turn) -> None:
    plan = Record("plan", key="k", data={"step": 1}, files={"f": File(data=b"")}, after=None)
    assert_type(session.append(Message.user("a"), plan), Head)
    assert_type(session.record("plan", "k", at=Head(1, 1)), Record | None)
    assert_type(session.records("plan", prefix="k/", before=plan.id, limit=2), list[Record])
    assert_type(session.records("plan", key=None, all_branches=True), list[Record])
    assert_type(turn.record("plan", [1, None], key="k"), Record)
    assert_type(session.drop(kind="plan", keys=["k", None], keep=1), DropReport)
    assert_type(store.put_record(plan, scope="user:7"), Record)
    assert_type(store.record("plan", "k", scope=None), Record | None)
    for item in session.follow("1.2", records=True):
        match item:
            case Record():
                assert_type(item.seq, int | None)
            case BranchChanged() | Message():
                assert_type(item.text, str)
    session.drop()  # type: ignore[call-arg]
    session.record("plan", at=1.5)  # type: ignore[arg-type]


def telling(branch: BranchInfo, link: Link, session: Session) -> None:
    assert_type(branch.head, Head)
    assert_type(branch.active, bool)
    assert_type((branch.parent, branch.parent_id), tuple[int | None, str | None])
    assert_type((branch.fork_seq, branch.asked_seq, branch.seq), tuple[int, int, int])
    assert_type(branch.reason, BranchReason)
    assert_type(branch.abandoned_at, datetime | None)
    assert_type(branch.abandoned_by, BranchReason | None)
    session.rewind(branch.head)
    session.messages(branch=branch.number)
    assert_type((link.session_id, link.parent), tuple[str, str | None])
    assert_type(link.relation, Relation | None)
    assert_type(link.state, LinkState)
    assert_type(session.info().relation, Relation | None)
    branch.seq = 5  # type: ignore[misc]


def relating(store: Store, session: Session) -> None:
    assert_type(store.create(parent=session), Session)
    store.create(parent="ref", relation="delegate", key="k", scope="s", agent="a", cwd="/")
    for relation in ("fork", "continue", "reset", "delegate", "import"):
        store.create(parent=session, relation=relation)
    store.create(parent=session, relation="child")  # type: ignore[arg-type]
    store.create(parent=5)  # type: ignore[arg-type]


def loading(store: Store, rows: Iterator[tuple[str, list[Message]]]) -> None:
    report = store.load(rows, progress=lambda done: None)
    assert_type(report, LoadReport)
    store.load([("a", [Message.user("x"), Record("state")]), ({"key": "b", "scope": "s"}, [])])
    store.load([("a", ["text"])])  # type: ignore[list-item]
    store.load([({"scope": "s"}, [])])  # type: ignore[list-item]
    store.load([("a", [])], 5)  # type: ignore[call-arg,arg-type]


def exporting(store: Store) -> None:
    report = store.export("out.jsonl", "ref", overwrite=True)
    assert_type(report, ExportReport)
    assert_type(report.review, Review | None)
    assert_type(report.findings, tuple[Redaction, ...])
    store.export(Path("out.jsonl"), redact=None)
    store.export("out.jsonl", redact="all")
    assert_type(store.review("ref", redact=["default", "email"]), Review)
    assert_type(store.import_("out.jsonl", trust=True).redacted, bool)
    assert_type(store.copy(Path("to.db")), CopyReport)
    assert_type(store.copy(store, progress=lambda done, total: None).same, bool)
    store.copy(5)  # type: ignore[arg-type]
    store.export()  # type: ignore[call-arg]
    store.export("out.jsonl", redact=5)  # type: ignore[arg-type]
    store.review(redact=True)  # type: ignore[arg-type]


def deleting(store: Store) -> None:
    assert_type(store.trash("ref"), SessionInfo)
    assert_type(store.restore("ref"), SessionInfo)
    store.restore("ref", keyless=True)
    assert_type(store.sessions(trashed=True), Page[SessionInfo])
    report = store.purge("ref")
    assert_type(report, PurgeReport)
    assert_type((report.messages, report.kept), tuple[int, int])
    assert_type(report.kept_for, tuple[str, ...])
    assert_type(report.pending, tuple[str, ...])
    store.purge("ref", forks="erase")
    store.purge("ref", forks="both")  # type: ignore[arg-type]
    assert_type(report.scan, Scan | None)


def retaining(store: Store, session: Session) -> None:
    plan = store.retention(older_than="90d", idle=timedelta(days=30), keep_last=5, scope="s")
    assert_type(plan, Plan)
    assert_type(store.retention(max_bytes=10**9, empty_trash="30d"), Plan)
    assert_type(list(plan), list[PlanItem])
    assert_type([item.why for item in plan.trash], list[str])
    assert_type([spared.session_id for spared in plan.spared], list[str | None])
    report = store.apply(plan, archive=Path("old.jsonl"), progress=lambda done, total: None)
    assert_type(report, RetentionReport)
    assert_type(report.scan, Scan | None)
    assert_type(session.erase("id"), EraseReport)
    session.erase(3)
    session.erase(Head(1, 2))
    assert_type(session.erase(message=3).erased_in, tuple[str, ...])
    store.retention("90d")  # type: ignore[call-arg]
    store.apply("plan")  # type: ignore[arg-type]
    session.erase()  # type: ignore[call-arg]
    store.restore("ref", True)  # type: ignore[call-arg]
    stats = store.stats()
    assert_type(stats.growth, tuple[Growth, ...])
    assert_type(stats.days, tuple[DayUsage, ...])
    assert_type((stats.trashed, stats.branches), tuple[int, int])


def updating(session: Session) -> None:
    assert_type(
        session.update(
            title="t", model=None, cwd="/", scope="s", pinned=True, archived=False, goal=Goal("win")
        ),
        SessionInfo,
    )
    session.update(metadata={"a": 1, "b": None}, auto_title="guess")
    session.update(title=None, goal=None)
    session.update(title="t", expect=Head(1, 2), expect_metadata={"a": None})
    assert_type(session.append(Message.user("x"), update={"title": "t"}), Head)
    session.append(update={"colour": "red"})  # type: ignore[arg-type]
    assert_type(session.pop(expect=Head(1, 2)), Message | None)
    assert_type(session.rewind(3, exact=True, update={"goal": None}), Head)
    assert_type(session.fork(3, exact=True, entries=[Message.user("x")], update={}), Session)
    assert_type(session.replace([], keep="id", update={"pinned": True}), Head)
    assert_type(session.amend("id", "text"), Head)
    session.amend(3, [Text("x"), "y"], expect=Head(1, 2))
    session.amend(3)  # type: ignore[call-arg]
    session.update(colour="red")  # type: ignore[call-arg]
    session.update(pinned="yes")  # type: ignore[arg-type]
    session.update(goal="win")  # type: ignore[arg-type]
    Goal("x", state="lost")  # type: ignore[arg-type]


def turns(session: Session) -> None:
    with session.turn(wait=5, model="m", run_id="r") as turn:
        assert_type(turn, Turn)
        assert_type(turn.id, str)
        assert_type(turn.recovered, Recovered | None)
        assert_type(turn.user("hi", name="Ann", metadata={"k": [1]}), Message)
        assert_type(turn.user(["look", File(name="a", data=b"x")]), Message)
        calls = [ToolCall("c", "find", {"q": 1})]
        assert_type(
            turn.assistant("a", tool_calls=calls, usage=Usage(1, 2), cost=Decimal("0.1")), Message
        )
        turn.assistant(tool_calls=calls)
        assert_type(turn.tool("c", "result", error=True), Message)
        turn.tool("c", [Text("a"), Raw("mcp", {}), File(data=b"x")])
        assert_type(turn.add(Message.system("s")), Message)
        turn.tool_started("c")
        assert_type(turn.take_queued(), list[Message])
        turn.cancel("why")
        turn.fail(ValueError("x"))
        turn.fail("words")
        turn.user("hi", colour="red")  # type: ignore[call-arg]
        turn.tool("c", 5)  # type: ignore[arg-type]


def drafts(turn: Turn, deltas: Iterator[str]) -> None:
    with turn.stream(model="m") as reply:
        assert_type(reply, Draft)
        for delta in deltas:
            reply.write(delta)
        reply.think("hm", signature="s")
        reply.tool_call("c", "find", {"q": [1, None]})
        reply.usage(Usage(1, 2), cost=Decimal("0.1"))
        reply.flush()
        assert_type(reply.id, str)
    assert_type(reply.message, Message | None)
    assert_type(turn.stream().close(status="partial"), Message | None)
    reply.write(b"bytes")  # type: ignore[arg-type]
    reply.close(status="damaged")  # type: ignore[arg-type]


def values(message: Message, info: SessionInfo, told: TurnInfo, found: Recovered) -> None:
    assert_type(message.id, str)
    assert_type(message.seq, int | None)
    assert_type(message.created_at, datetime | None)
    assert_type(message.text, str)
    assert_type(message.tool_calls, tuple[ToolCall, ...])
    assert_type(message.tool_results, tuple[ToolResult, ...])
    assert_type(message.usage, Usage | None)
    assert_type(message.cost, Decimal | None)
    assert_type(message.metadata, dict[str, JSON])
    assert_type(message.provenance, Provenance | None)
    assert_type(message.status, Literal["complete", "partial", "damaged", "erased"])
    assert_type(message.covers, str | None)
    for part in message.parts:
        match part:
            case Text(text):
                assert_type(text, str)
            case Thinking(_, signature):
                assert_type(signature, str | None)
            case ToolCall(_, name):
                assert_type(name, str)
            case ToolResult(call_id):
                assert_type(call_id, str)
            case File(sha256=sha256):
                assert_type(sha256, str | None)
            case Raw(source):
                assert_type(source, str)
    assert_type(Usage(1) + Usage(2), Usage)
    assert_type(Usage(1).total, int)
    assert_type(info.goal, Goal | None)
    assert_type(info.cost, Decimal)
    assert_type(told.latency_ms, int | None)
    assert_type(told.tools, tuple[ToolRecord, ...])
    assert_type(found.partial, Message | None)
    assert_type(found.unknown_tools, tuple[str, ...])
    Message.user("a", id="mine", created_at=datetime.now(UTC), status="partial")
    Message.assistant(["a", Thinking("b")], tool_calls=(), provenance=Provenance("x"))
    Message(role="boss")  # type: ignore[arg-type]
    Message.user("a", id=5)  # type: ignore[arg-type]
    message.text = "other"  # type: ignore[misc]
    message.id = "other"  # type: ignore[misc]


def sums(report: UsageReport) -> Sequence[tuple[str | None, Decimal]]:
    assert_type(report.usage, Usage)
    assert_type(report.by_model, tuple[ModelUsage, ...])
    return [(line.model, line.cost) for line in report.by_model]


def failing(session: Session, message: Message) -> Head | None:
    try:
        return session.append(message, expect=Head(1, 3))
    except errors.HeadMoved as moved:
        assert_type(moved.actual, Head)
        return moved.actual
    except errors.IdConflict as conflict:
        assert_type(conflict.message_id, str)
    except errors.SessionBusy as busy:
        assert_type((busy.host, busy.pid, busy.since), tuple[str, int, datetime])
    except errors.TurnLost as lost:
        assert_type(lost.turn_id, str)
    except (errors.Invalid, errors.StorageError, errors.NotFound):
        pass
    except holdfast.HoldfastError:
        raise
    return None


def windows(session: Session) -> None:
    window = session.window(provider="anthropic", max_tokens=9, reserve=3, system="Be kind.")
    assert_type(window, Window)
    assert_type(window.messages, list[Any])
    assert_type(window.sources, tuple[tuple[str, ...], ...])
    assert_type(list(window), list[dict[str, JSON]])
    assert_type(window.call_ids, dict[str, str])
    window.messages = []  # type: ignore[misc]
    session.window(provider="nobody")  # type: ignore[arg-type]
    session.window("openai")  # type: ignore[call-arg]


def asking(session: Session, chat: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """The providers' own packages take a window as it is."""
    window = session.window(provider="openai")
    reply = chat.chat.completions.create(model="m", messages=window.messages)
    assert_type(reply.choices[0].message.content, str | None)
    chat.chat.completions.create(model="m", messages=window.messages, stream=True)
    items = session.window(provider="openai-responses")
    assert_type(chat.responses.create(model="m", input=items.messages).output_text, str)
    blocks = session.window(provider="anthropic")
    said = claude.messages.create(
        model="m",
        max_tokens=9,
        messages=blocks.messages,
        system=blocks.system or anthropic.omit,
    )
    assert_type(said.usage.input_tokens, int)
    with claude.messages.stream(model="m", max_tokens=9, messages=blocks.messages) as stream:
        assert_type(list(stream.text_stream), list[str])


async def asking_async(
    session: AsyncSession, chat: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    window = await session.window(provider="openai")
    await chat.chat.completions.create(model="m", messages=window.messages)
    await chat.responses.create(model="m", input=window.messages)
    await claude.messages.create(
        model="m", max_tokens=9, messages=window.messages, system=window.system or anthropic.omit
    )


async def opening_async() -> None:
    store = await holdfast.open_async("agent.db", durability="process", readonly=True)
    assert_type(store, AsyncStore)
    await store.close()
    holdfast.open_async(5)  # type: ignore[arg-type]


async def exact_reads(store: AsyncStore, session: AsyncSession) -> None:
    assert_type(await store.blobs("sha"), dict[str, bytes])
    assert_type(await store.message("id"), tuple[AsyncSession, Message])
    assert_type(await session.message("id"), Message)


async def transfer_twins(store: AsyncStore) -> None:
    assert_type(await store.export("out.jsonl", redact=None), ExportReport)
    assert_type(await store.copy(store), CopyReport)
    assert_type(await store.load([("a", [Message.user("x")])]), LoadReport)
    assert_type(await store.review("ref", redact=["email"]), Review)


async def twins() -> None:
    async with holdfast.open_async("agent.db", tenant="t") as store:
        assert_type(store, AsyncStore)
        session = await store.session("k", title="t")
        assert_type(session, AsyncSession)
        assert_type(await store.create(), AsyncSession)
        assert_type(await store.get("ref"), AsyncSession)
        assert_type(await store.latest(), AsyncSession | None)
        assert_type(await store.sessions(), Page[SessionInfo])
        assert_type(await store.blob("sha"), bytes)
        assert_type(await store.stats(), Stats)
        assert_type(await session.append(Message.user("a")), Head)
        assert_type(await session.messages(limit=1), list[Message])
        async for one in session.iter_messages(after=1, role="user"):
            assert_type(one, Message)
        assert_type(await session.recover(), Recovered | None)
        assert_type(await session.update(pinned=True), SessionInfo)
        assert_type(await session.enqueue("x"), QueuedInput)
        assert_type(await store.create(parent=session, relation="fork"), AsyncSession)
        assert_type(await session.fork(3, key="k"), AsyncSession)
        assert_type(await session.rewind("id"), Head)
        assert_type(await session.undo(2), Head)
        assert_type(await session.redo(), Head)
        assert_type(await session.replace([Message.user("a")]), Head)
        assert_type(await session.clear(), Head)
        assert_type(await session.summarize("short", upto=3), Head)
        assert_type(await session.branches(), list[BranchInfo])
        assert_type(await session.lineage(), list[Link])
        assert_type(await session.children(), list[Link])
        assert_type(await store.trash("ref"), SessionInfo)
        assert_type(await store.restore("ref", keyless=True), SessionInfo)
        assert_type(await store.purge("ref", forks="erase"), PurgeReport)
        await store.purge("ref", forks="both")  # type: ignore[arg-type]
        plan = await store.retention(idle="30d")
        assert_type(plan, Plan)
        assert_type(await store.apply(plan, archive="old.jsonl"), RetentionReport)
        await session.rewind(None)  # type: ignore[arg-type]
        assert_type(await session.erase("id"), EraseReport)
        async with session.turn(wait=1.0) as turn:
            assert_type(turn, AsyncTurn)
            assert_type(await turn.user("hi"), Message)
            assert_type(await turn.take_queued(), list[Message])
            async with turn.stream() as reply:
                assert_type(reply, AsyncDraft)
                await reply.write("x")
            await turn.tool_started("c")
        async for item in session.follow():
            assert_type(item, Message | BranchChanged)
        async for activity in store.follow():
            assert_type(activity, Activity)
        session.append("text")  # type: ignore[arg-type, unused-coroutine]
