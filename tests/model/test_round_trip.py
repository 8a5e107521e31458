"""What is stored comes back exactly, or is refused and stores nothing."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import codec
from holdfast.errors import BadMessage, Invalid
from holdfast.values import (
    JSON,
    File,
    Goal,
    Message,
    Part,
    Provenance,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from tests.model import strategies as some
from tests.store_urls import KINDS, place

_NOW = datetime(2024, 1, 1, tzinfo=UTC)
_FEWER = settings(max_examples=max(20, settings().max_examples // 4))  # those with a real store


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[holdfast.Store]:
    """One store for many examples: each creates a session of its own."""
    with place(request.param, tmp_path_factory.mktemp("store")) as url:
        with holdfast.open(url, durability="process") as opened:
            yield opened


def exactly(one: object, two: object) -> bool:
    """Compare with types: 1, 1.0 and True are three values, 0.0 and -0.0 are two."""
    return repr(one) == repr(two) and one == two


def without_data(part: Part) -> Part:
    """Return a part as it is stored: files with hash and size in place of their data."""
    if isinstance(part, File) and part.data is not None:
        name = codec.sha256_hex(part.data)
        return File(name=part.name, mime=part.mime, sha256=name, size=len(part.data))
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        return msgspec.structs.replace(
            part, content=tuple(without_data(inner) for inner in part.content)
        )
    return part


def data_of(message: Message) -> list[bytes]:
    """Return all file data of a message."""
    inner = [
        p
        for result in message.tool_results
        if not isinstance(result.content, str)
        for p in result.content
    ]
    files = [p for p in (*message.parts, *inner) if isinstance(p, File)]
    return [file.data for file in files if file.data is not None]


def assert_same(found: Message, given_: Message) -> None:
    """Compare field by field what was stored with what was given."""
    assert exactly(found.parts, tuple(without_data(part) for part in given_.parts))
    for field in ("id", "role", "status", "name", "model", "usage", "provenance", "metadata"):
        assert exactly(getattr(found, field), getattr(given_, field)), field
    assert found.cost == given_.cost
    if given_.created_at is not None:
        assert found.created_at == given_.created_at
        assert found.created_at is not None
        assert found.created_at.utcoffset() == given_.created_at.utcoffset()


@given(some.messages)
def test_the_codec_gives_back_what_it_took(message: Message) -> None:
    """Every valid message, encoded and decoded."""
    item = codec.encode(message, _NOW)
    blobs = dict(item.blobs)
    found = codec.decode(item.body, id=item.id, seq=1, turn_id=None, blob=blobs.get)
    assert_same(found, message)
    assert all(codec.sha256_hex(data) == name for name, data in blobs.items())
    assert codec.is_same_body(item.body, codec.encode(message, _NOW + timedelta(1)).body)


@given(some.messages)
def test_what_was_read_can_be_stored_again(message: Message) -> None:
    """Encoding a decoded message gives the same body: reading and appending is a retry."""
    item = codec.encode(message, _NOW)
    found = codec.decode(item.body, id=item.id, seq=1, turn_id=None, blob=dict(item.blobs).get)
    assert codec.encode(found, _NOW).body == item.body


@given(some.messages, some.messages)
def test_two_messages_are_the_same_only_if_they_are(one: Message, two: Message) -> None:
    """Messages that `same_body` treats as one are equal in everything but id and time."""
    bodies = [codec.encode(message, _NOW) for message in (one, two)]
    plain = [
        codec.decode(b.body, id="x", seq=1, turn_id=None, blob=dict(b.blobs).get) for b in bodies
    ]
    if codec.is_same_body(bodies[0].body, bodies[1].body):
        assert msgspec.structs.replace(plain[0], created_at=plain[1].created_at) == plain[1]


@_FEWER
@given(st.lists(some.messages, min_size=1, max_size=3, unique_by=lambda m: m.id))
def test_a_store_gives_back_what_it_took(store: holdfast.Store, batch: list[Message]) -> None:
    """Through a real store: messages, files, sums; and once more as a retry."""
    session = store.create()
    head = session.append(*batch)
    found = session.messages()
    for message, stored in zip(batch, found, strict=True):
        assert_same(stored, message)
        for data in data_of(message):
            assert store.blob(codec.sha256_hex(data)) == data
    assert session.append(*batch) == head
    assert session.append(*found) == head
    assert session.messages() == found
    spent = sum((m.usage for m in batch if m.usage), Usage())
    assert session.usage().usage == session.info().usage == spent
    assert session.usage().cost == sum((m.cost for m in batch if m.cost), Decimal())


@_FEWER
@given(some.messages)
def test_a_turn_and_a_queue_give_back_what_they_took(
    store: holdfast.Store, message: Message
) -> None:
    """The other two ways into a history lead to the same message."""
    turned, queued = store.create(), store.create()
    with turned.turn() as turn:
        assert_same(turn.add(message), message)
    queued.enqueue(message)
    assert_same(queued.queued()[0].message, message)
    with queued.turn() as turn:
        (taken,) = turn.take_queued()
    for session in (turned, queued):
        assert_same(session.messages()[0], message)
    assert [taken] == queued.messages()


@_FEWER
@given(st.lists(some.texts | some.bulky, max_size=6), st.lists(st.booleans(), min_size=6))
def test_a_streamed_reply_gives_back_what_it_took(
    store: holdfast.Store, deltas: list[str], flushes: list[bool]
) -> None:
    """However the text was split, and wherever it was flushed."""
    session = store.create()
    with session.turn() as turn, turn.stream() as reply:
        for delta, flushed in zip(deltas, flushes, strict=False):
            reply.write(delta)
            if flushed:
                reply.flush()
    assert "".join(m.text for m in session.messages()) == "".join(deltas[: len(flushes)])


_goals = st.builds(
    Goal,
    some.texts,
    summary=st.none() | some.texts,
    state=st.sampled_from(["active", "completed", "cancelled", "blocked"]),
    started_at=st.none() | some.times,
    recap=st.none() | some.texts,
    rounds=st.integers(0, 2**40),
)


@_FEWER
@given(
    key=some.names,
    title=some.names,
    scope=st.none() | some.names,
    metadata=some.json_objects,
    goal=_goals,
)
def test_a_session_keeps_its_identity(
    store: holdfast.Store,
    *,
    key: str,
    title: str,
    scope: str | None,
    metadata: dict[str, JSON],
    goal: Goal,
) -> None:
    """Key, title, scope, metadata and goal come back; keys find their session and no other."""
    session = store.session("k" + key)
    assert store.session("k" + key).id == session.id
    assert store.get("k" + key).id == session.id
    told = session.update(title=title, scope=scope, goal=goal)
    assert (told.key, told.title, told.scope, told.goal) == ("k" + key, title, scope, goal)
    fresh = store.create(metadata={"k": [metadata]})
    assert exactly(fresh.info().metadata, {"k": [metadata]})


# ------------------------------------------------------------------------------------------ junk


class Colour(Enum):
    RED = "red"


class Named(str):
    __slots__ = ()


class Surprise:
    """An object that is not text and converts to text."""

    def __str__(self) -> str:
        return "surprise"


_JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    2**70,
    b"bytes",
    bytearray(b"bytes"),
    memoryview(b"bytes"),
    "text",
    "",
    "x" * 5000,
    (),
    ("a",),
    [],
    ["a"],
    {},
    {"a": 1},
    {1: 2},
    {b"k": 1},
    {"a": {"b": {1, 2}}},
    {1},
    frozenset({1}),
    object(),
    Surprise(),
    Named("text"),
    Colour.RED,
    Decimal(1),
    Decimal("NaN"),
    datetime(2024, 1, 1),  # noqa: DTZ001 - naive on purpose
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28))),
    timedelta(1),
    1 + 2j,
    range(3),
    Text("part"),
    (Text("part"),),
    Text,
    Message.user("message"),
    Usage(1),
    Usage(input=-1),
    Provenance("p"),
    len,
    ...,
]
_FIELDS = [
    "id",
    "role",
    "parts",
    "created_at",
    "status",
    "name",
    "model",
    "usage",
    "cost",
    "metadata",
    "provenance",
]
_HOLES: dict[str, Any] = {
    "Text.text": Text,
    "Thinking.text": Thinking,
    "Thinking.signature": lambda junk: Thinking("t", junk),
    "ToolCall.id": lambda junk: ToolCall(junk, "n"),
    "ToolCall.name": lambda junk: ToolCall("c", junk),
    "ToolCall.arguments": lambda junk: ToolCall("c", "n", junk),
    "ToolResult.call_id": ToolResult,
    "ToolResult.content": lambda junk: ToolResult("c", junk),
    "ToolResult.content[0]": lambda junk: ToolResult("c", (junk,)),
    "ToolResult.content.text": lambda junk: ToolResult("c", (Text(junk),)),
    "ToolResult.error": lambda junk: ToolResult("c", error=junk),
    "ToolResult.name": lambda junk: ToolResult("c", name=junk),
    "Raw.source": lambda junk: Raw(junk, 1),
    "Raw.data": lambda junk: Raw("x", junk),
    "File.name": lambda junk: File(name=junk, data=b"x"),
    "File.mime": lambda junk: File(mime=junk, data=b"x"),
    "File.data": lambda junk: File(data=junk),
    "File.sha256": lambda junk: File(data=b"x", sha256=junk),
    "File.size": lambda junk: File(sha256=codec.sha256_hex(b"x"), size=junk),
    "part": lambda junk: junk,
    "Provenance.source": Provenance,
    "Provenance.ref": lambda junk: Provenance("x", junk),
    "Usage.input": Usage,
    "metadata.value": lambda junk: {"k": junk},
    "metadata.deep": lambda junk: {"k": [{"d": junk}]},
}


_JSON_HOLES = frozenset({"ToolCall.arguments", "Raw.data", "metadata.value", "metadata.deep"})


def junk_message(hole: str, junk: Any) -> Message:  # noqa: ANN401
    """Return a message with junk in one field."""
    if hole in _FIELDS:
        return Message(**{"role": "assistant", hole: junk})
    value = _HOLES[hole](junk)
    if hole.startswith("Provenance"):
        return Message(role="user", provenance=value)
    if hole.startswith("Usage"):
        return Message(role="user", usage=value)
    if hole.startswith("metadata"):
        return Message(role="user", metadata=value)
    return Message(role="assistant", parts=(value,))


@pytest.mark.parametrize("hole", [*_FIELDS, *_HOLES])
def test_junk_is_kept_exactly_or_refused(store: holdfast.Store, hole: str) -> None:
    """In every field: it comes back unchanged, a tuple in JSON as a list; or it is `BadMessage`."""
    session = store.create()
    session.append(Message.user([File(data=b"x")]))
    for junk in _JUNK:
        message = junk_message(hole, junk)
        before = session.info()
        try:
            session.append(Message.user("before"), message)
        except BadMessage:
            assert session.info() == before, junk
            continue
        found = session.messages()[-1]
        if hole in _JSON_HOLES and isinstance(junk, tuple):
            message = msgspec.structs.replace(junk_message(hole, [*junk]), id=message.id)
        assert _equal(found, message), (junk, found)
    assert len(session.messages()) == session.head().seq


def _equal(found: Message, given_: Message) -> bool:
    try:
        wanted = tuple(without_data(part) for part in given_.parts)
    except (TypeError, AttributeError):
        return False
    ours = msgspec.structs.replace(given_, seq=found.seq, parts=wanted)
    when = given_.created_at or found.created_at
    return found == msgspec.structs.replace(ours, created_at=when, id=ours.id)


@given(hole=st.sampled_from([*_FIELDS, *_HOLES]), junk=some.json_values | st.binary())
def test_no_value_is_an_unexpected_error(hole: str, junk: Any) -> None:  # noqa: ANN401
    """The codec accepts a value in a field, or raises `BadMessage` (or another `Invalid`)."""
    message = junk_message(hole, junk)
    try:
        item = codec.encode(message, _NOW)
    except Invalid:
        return
    found = codec.decode(item.body, id=item.id, seq=1, turn_id=None, blob=dict(item.blobs).get)
    assert _equal(found, message)
