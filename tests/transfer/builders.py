"""Random stores: steps are drawn first, and can then be run on any store."""

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from holdfast import (
    File,
    Message,
    Record,
    Session,
    Store,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.values import Goal, Provenance
from tests.model import strategies as some
from tests.model.strategies import json_objects, json_values, names, texts
from tests.transfer.views import listed

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

_records = st.builds(
    Record,
    kind=st.sampled_from(["state", "step"]) | names,
    key=st.none() | st.just("k") | names,
    data=json_values,
    files=st.dictionaries(
        names,
        some.files
        | st.builds(lambda byte: File(data=byte * 2000), st.binary(min_size=1, max_size=1)),
        max_size=2,
    ),
    created_at=st.none() | some.times,
)

# Each step is an operation, the session it is for, and its arguments.
numbers = st.integers(0, 12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), numbers, st.lists(_messages, min_size=1, max_size=3)),
        st.tuples(
            st.just("append"), numbers, st.lists(_messages | _records, min_size=1, max_size=4)
        ),
        st.tuples(st.just("append"), numbers, st.lists(_records, min_size=1, max_size=2)),
        st.tuples(st.just("drop"), numbers, st.none() | st.just(1)),
        st.tuples(st.just("put"), numbers, _records),
        st.tuples(st.just("turn"), numbers, st.tuples(_messages, texts, names)),
        st.tuples(st.just("enqueue"), numbers, _messages),
        st.tuples(st.just("bulk"), numbers, st.sampled_from("xé\0\ud800")),
        st.tuples(st.just("fork"), numbers, numbers),
        st.tuples(st.just("continue"), numbers, names),
        st.tuples(st.just("delegate"), numbers, names),
        st.tuples(st.just("rewind"), numbers, numbers),
        st.tuples(st.just("undo"), numbers, st.integers(1, 2)),
        st.tuples(st.just("redo"), numbers, st.none()),
        st.tuples(st.just("replace"), numbers, st.lists(_messages, max_size=3)),
        st.tuples(st.just("clear"), numbers, st.none()),
        st.tuples(st.just("summarize"), numbers, names),
        st.tuples(st.just("update"), numbers, json_objects),
        st.tuples(st.just("trash"), numbers, st.none()),
        st.tuples(st.just("purge"), numbers, st.sampled_from(["keep", "erase"])),
    ),
    max_size=14,
)


def take(store: Store, verb: str, which: int, what: Any) -> None:  # noqa: ANN401 - as drawn
    """Run a step on one of the sessions."""
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
        case "drop":
            session.drop(kind="state", keep=what)
        case "put":
            store.put_record(what, scope=what.key)
        case "turn":
            talk(session, *what)
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


def talk(session: Session, message: Message, text: str, name: str) -> None:
    """Run a turn that uses every feature."""
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
