"""What goes out comes in as it was: from any backend to any, and to the byte."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import File, Message, Session, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.errors import HoldfastError
from holdfast.records import Goal, Provenance
from tests.model import strategies as some
from tests.model.strategies import json_objects, json_values, names, texts
from tests.places import KINDS, Kind, place
from tests.transfer.showing import lines_of, listed, shown


@contextmanager
def _opened(kind: Kind, folder: Path) -> Iterator[Store]:
    with place(kind, folder) as url, holdfast.open(url, durability="process") as store:
        yield store


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


_parts = st.one_of(
    st.builds(Text, texts),
    st.builds(Thinking, texts, st.none() | texts),
    st.builds(ToolCall, texts, texts, json_values),
    st.builds(ToolResult, texts, texts | st.lists(some.files | some.raws).map(tuple)),
    some.raws,
    some.files,
)
_messages = st.builds(
    Message,
    id=names,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(_parts, max_size=4).map(tuple),
    created_at=st.none() | some.times,
    status=st.sampled_from(["complete", "partial"]),
    name=st.none() | texts,
    model=st.none() | names,
    usage=st.none() | some.usages,
    cost=st.none() | some.costs,
    metadata=json_objects,
    provenance=st.none() | st.builds(Provenance, texts, st.none() | texts),
)

# Each step is a verb, which session it is for, and what it needs.
_numbers = st.integers(0, 12)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _numbers, st.lists(_messages, min_size=1, max_size=3)),
        st.tuples(st.just("turn"), _numbers, st.tuples(_messages, texts, names)),
        st.tuples(st.just("enqueue"), _numbers, _messages),
        st.tuples(st.just("bulk"), _numbers, st.sampled_from("xé\0\ud800")),
        st.tuples(st.just("fork"), _numbers, _numbers),
        st.tuples(st.just("continue"), _numbers, names),
        st.tuples(st.just("delegate"), _numbers, names),
        st.tuples(st.just("rewind"), _numbers, _numbers),
        st.tuples(st.just("undo"), _numbers, st.integers(1, 2)),
        st.tuples(st.just("redo"), _numbers, st.none()),
        st.tuples(st.just("replace"), _numbers, st.lists(_messages, max_size=3)),
        st.tuples(st.just("clear"), _numbers, st.none()),
        st.tuples(st.just("summarize"), _numbers, names),
        st.tuples(st.just("update"), _numbers, json_objects),
        st.tuples(st.just("trash"), _numbers, st.none()),
        st.tuples(st.just("purge"), _numbers, st.sampled_from(["keep", "erase"])),
    ),
    max_size=14,
)


def _do(store: Store, verb: str, which: int, what: Any) -> None:  # noqa: ANN401 - as drawn
    found = [*listed(store), *listed(store, trashed=True)]
    if verb == "trash":
        store.trash(found[which % len(found)].id)
    elif verb == "purge":
        store.purge(found[which % len(found)].id, forks=what)
    else:
        _do_in(store, store.get(found[which % len(found)].id), verb, what)


def _do_in(store: Store, session: Session, verb: str, what: Any) -> None:  # noqa: ANN401, C901, PLR0912
    match verb:
        case "append":
            session.append(*what)
        case "turn":
            _turn(session, *what)
        case "bulk":
            data = what.encode("utf-8", "surrogatepass") * 40_000
            session.append(Message.user([what * 70_000, File(data=data)]))
            session.enqueue([what * 66_000, File(name="waits", data=data[1:])])
        case "enqueue":
            session.enqueue(what)
        case "fork":
            session.fork(min(what, session.head().seq))
        case "continue" | "delegate":
            store.create(parent=session, relation=verb, title=what, key=what)
        case "rewind":
            session.rewind(min(what, session.head().seq))
        case "undo":
            session.undo(what)
        case "redo":
            session.redo()
        case "replace":
            kept = session.messages()[: len(what)]
            session.replace([*kept, *what])
        case "clear":
            session.clear()
        case "summarize":
            session.summarize(what)
        case "update":
            goal = Goal("get there", rounds=3)
            session.update(metadata=what, pinned=True, archived=len(what) > 1, goal=goal)


def _turn(session: Session, message: Message, text: str, name: str) -> None:
    with session.turn(model=name, run_id=name) as turn:
        turn.user(text)
        with turn.stream() as reply:
            reply.write(text or "x")
            reply.usage(Usage(5, 7), cost=Decimal("1e-12"))
        turn.assistant("calls", tool_calls=[ToolCall("c", "t", [1]), ToolCall(name, "u")])
        turn.tool_started("c")
        turn.tool("c", text, error=True)
        turn.add(message)
        turn.take_queued()


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.sampled_from(KINDS), names, _steps)
def test_a_round_trip_is_identical(
    first: Kind, second: Kind, name: str, steps: list[tuple[str, int, Any]]
) -> None:
    """Everything the API shows is as it was, and a second export is the same to the byte."""
    with _folder() as folder, _opened(first, folder) as source, _opened(second, folder) as target:
        source.create(key=name, title=name, scope=name, cwd=name, agent=name, model=name)
        for verb, which, what in steps:
            try:
                _do(source, verb, which, what)
            except (HoldfastError, ZeroDivisionError):
                continue  # Refused, or no session is left: both are states to export.
        out = source.export(folder / "one.jsonl", redact=None)
        report = target.import_(folder / "one.jsonl")
        assert report.damage == ()
        assert report.skipped == ()
        assert (report.sessions, report.messages) == (out.sessions, out.messages)
        assert shown(target) == shown(source)
        assert target.verify() == []
        target.export(folder / "two.jsonl", redact=None)
        assert lines_of(folder / "two.jsonl") == lines_of(folder / "one.jsonl")
        again = target.import_(folder / "one.jsonl")
        assert (again.sessions, again.messages) == (0, 0)
        assert len(again.skipped) == out.sessions
        assert shown(target) == shown(source)


@settings(max_examples=40)
@given(st.sampled_from(KINDS), names, _steps, _numbers)
def test_one_session_comes_with_all_it_shares(
    kind: Kind, name: str, steps: list[tuple[str, int, Any]], which: int
) -> None:
    """A fork without its parent reads as it did; the parent is there for it alone."""
    with _folder() as folder, _opened("memory", folder) as source, _opened(kind, folder) as target:
        source.create(key=name)
        for verb, number, what in steps:
            try:
                _do(source, verb, number, what)
            except (HoldfastError, ZeroDivisionError):
                continue
        there = [*listed(source), *listed(source, trashed=True)]
        if not there:
            return
        chosen = there[which % len(there)]
        source.export(folder / "one.jsonl", chosen.id, redact=None)
        assert target.import_(folder / "one.jsonl").damage == ()
        assert [i.id for i in (*listed(target), *listed(target, trashed=True))] == [chosen.id]
        before, after = source.get(chosen.id), target.get(chosen.id)
        assert after.info() == msgspec.structs.replace(before.info(), forks=0)
        assert after.branches() == before.branches()
        for branch in before.branches():
            one = before.messages(branch=branch.number)
            assert after.messages(branch=branch.number) == one
        assert target.verify() == []
        target.export(folder / "two.jsonl", redact=None)
        assert lines_of(folder / "two.jsonl") == lines_of(folder / "one.jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: Kind, tmp_path: Path) -> None:
    """A store that was emptied gets back what it had."""
    with _opened(kind, tmp_path) as source, _opened("memory", tmp_path) as other:
        session = source.session("k", metadata={"a": [1, 2.5, None, "\0\ud800"]})
        _turn(session, Message.user("x" * 70_000), "hello \ud83d", "m")
        fork = session.fork(title="fork")
        fork.append(Message.user("more"))
        head = fork.rewind(3)
        assert (head.seq, fork.branches()[-1].asked_seq) == (2, 3), "inside a tool exchange"
        fork.append(Message.user("other"))
        source.purge(session.id)
        before = shown(source)
        source.export(tmp_path / "one.jsonl", redact=None)
        other.import_(tmp_path / "one.jsonl")
        other.export(tmp_path / "two.jsonl", redact=None)
        source.purge(fork.id)
        assert source.stats().messages == 0
        source.import_(tmp_path / "two.jsonl")
        assert shown(source) == before
        assert source.verify() == []
