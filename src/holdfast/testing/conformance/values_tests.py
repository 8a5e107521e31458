"""What goes in comes out exactly, or is refused by naming the field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from holdfast.errors import BadMessage
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import (
    JSON,
    File,
    Goal,
    Message,
    Provenance,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

_STRANGE = [
    "nul \0 inside",
    "lone \ud800 surrogate",
    "\udfff",
    "pair of halves \ud83d\ude00",
    "emoji 😀 and \u2028 and \x7f and \x1b[31m",
    "combining e\u0301 and \u00e9",
    '"quotes" \\ and / and \n',
    "",
]
_ZONES = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9, minutes=30))]


class _Colour(StrEnum):
    RED = "red"


class _State(StrEnum):
    PAUSED = "paused"


class _Name(str):
    """A text that is equal only to itself, so that a dict may have it beside its own text."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Point(NamedTuple):
    x: int
    y: int


def _typed() -> dict[str, Any]:
    """Return JSON with tuples and texts of other types."""
    return {"pair": (1, (_Colour.RED,)), _Colour.RED: _Colour.RED, _Name("name"): _Name("Ann")}


def _plain() -> dict[str, JSON]:
    """Return the same as it is stored."""
    return {"pair": [1, ["red"]], "red": "red", "name": "Ann"}


def nest(depth: int) -> JSON:
    """Return a nested list of this depth."""
    value: JSON = []
    for _ in range(depth - 1):
        value = [value]
    return value


class ValueTests(StoreFixtures):
    """Every field of a message, every kind of part, and every bad value."""

    def stored(self, store: Store, message: Message) -> Message:
        """Store a message and return it as a later reader gets it."""
        store.session("s").append(message)
        return self.reopen(store).session("s").messages()[-1]

    def test_every_field_is_kept(self, store: Store) -> None:
        """Every field that a caller sets comes back equal."""
        message = Message(
            id="mine",
            role="assistant",
            parts=(
                Text("t"),
                Thinking("hm", "signed"),
                ToolCall("c", "find", {"q": ["x", 1, None]}),
                ToolResult("c", (Text("a"), Raw("mcp", {"k": [1.5]})), error=True, name="find"),
                ToolResult("d", "plain"),
                Raw("elsewhere", {"deep": {"er": [True, None, -0.5, 2**80]}}),
            ),
            created_at=datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
            status="partial",
            name="Ann",
            model="m-1",
            usage=Usage(1, 2, 3, 4, 5),
            cost=Decimal("0.000123"),
            metadata={"a": 1, "b": {"c": [None, "x"]}},
            provenance=Provenance("file", "line 7"),
        )
        found = self.stored(store, message)
        for field in message.__struct_fields__:
            if field not in {"seq", "turn_id"}:
                assert getattr(found, field) == getattr(message, field), field

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_every_role(self, store: Store, role: Any) -> None:  # noqa: ANN401
        """Four roles may be appended; the fifth is only written by the store."""
        assert self.stored(store, Message(role=role)).role == role

    @pytest.mark.parametrize("text", _STRANGE)
    def test_any_text_anywhere(self, store: Store, text: str) -> None:
        """Any Unicode, NUL and lone surrogates, in every text field."""
        message = Message(
            role="assistant",
            parts=(
                Text(text),
                Thinking(text, text),
                ToolCall("c" + text, text, {text: text}),
                ToolResult("c" + text, (Text(text), Raw(text, text)), name=text),
                Raw(text, [text]),
                File(name=text, mime=text, data=b"x"),
            ),
            id="i" + text,
            name=text,
            model=text,
            metadata={text: text},
            provenance=Provenance(text, text),
        )
        found = self.stored(store, message)
        assert found.parts[:-1] == message.parts[:-1]
        assert (found.id, found.name, found.model) == (message.id, text, text)
        assert (found.metadata, found.provenance) == (message.metadata, message.provenance)

    @pytest.mark.parametrize("zone", _ZONES)
    def test_times_are_kept_as_given(self, store: Store, zone: timezone) -> None:
        """The caller's time comes back with its zone, whatever the clock says."""
        when = datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=zone)
        found = self.stored(store, Message.user("a", created_at=when)).created_at
        assert found is not None
        assert (found, found.utcoffset()) == (when, when.utcoffset())

    def test_a_time_whose_zone_counts_seconds_is_not_moved(self, store: Store) -> None:
        """Local mean time, as in zones before 1900: kept exactly, or refused."""
        when = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
        try:
            found = self.stored(store, Message.user("a", created_at=when))
        except BadMessage as refused:
            assert "created_at" in str(refused)  # noqa: PT017 - either of two answers is right
        else:
            assert found.created_at == when

    def test_order_is_seq_and_not_time(self, session: Session) -> None:
        """Times out of order, and a clock that goes back, change no order."""
        late, early = datetime(2030, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
        session.append(Message.user("1", created_at=late), Message.user("2", created_at=early))
        self.clock.step(-1e6)
        session.append(Message.user("3"))
        assert [m.text for m in session.messages()] == ["1", "2", "3"]

    def test_a_message_without_a_time_gets_the_stores(self, session: Session) -> None:
        """It is aware and in UTC."""
        session.append(Message.user("a"))
        at = session.messages()[0].created_at
        assert at is not None
        assert at.utcoffset() == timedelta()
        assert at.year == 2023  # noqa: PLR2004 - the clock's

    def test_json_up_to_200_deep(self, store: Store) -> None:
        """Nesting of 200 is kept, in metadata, in arguments and in raw data."""
        deep = nest(200)
        message = Message(
            role="assistant",
            parts=(ToolCall("c", "n", deep), Raw("x", deep)),
            metadata={"deep": nest(199)},
        )
        found = self.stored(store, message)
        assert (found.parts, found.metadata) == (message.parts, message.metadata)

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            (Message(role="user", metadata={"deep": nest(200)}), "metadata"),
            (Message(role="user", parts=(Raw("x", nest(201)),)), "parts[0].data"),
            (Message(role="user", parts=(ToolCall("c", "n", nest(201)),)), "parts[0].arguments"),
            (
                Message(role="tool", parts=(ToolResult("c", (Raw("x", nest(201)),)),)),
                "parts[0].content[0].data",
            ),
        ],
    )
    def test_deeper_json_is_refused(self, session: Session, message: Message, field: str) -> None:
        """One level more is `BadMessage`, and the error says where."""
        self.refused(session, message, field)

    @pytest.mark.parametrize("times", [1, 2])
    def test_json_that_holds_itself_is_refused(self, session: Session, times: int) -> None:
        """A cyclic value cannot be encoded, and is not followed in every way that it has."""
        loop: list[Any] = []
        loop.extend([loop] * times)
        self.refused(session, Message.user("a", metadata={"loop": loop}), "metadata")
        self.refused(session, Message.user([Raw("x", {"loop": loop})]), "parts[0].data")
        with pytest.raises(BadMessage, match="metadata"):
            session.update(metadata={"loop": loop})

    @pytest.mark.parametrize(
        "value",
        [
            *(float("nan"), float("inf"), -float("inf"), (float("nan"),), b"bytes", {1: "x"}),
            *({1, 2}, object(), _Point(1, 2), {_Name("k"): 1, "k": 2}),
        ],
    )
    def test_what_is_not_json_is_refused(self, session: Session, value: Any) -> None:  # noqa: ANN401
        """NaN, bytes, sets, names of fields, keys that are not text, or the same: not kept."""
        self.refused(session, Message.user("a", metadata={"k": [value]}), "metadata")
        self.refused(session, Message.user([Raw("x", value)]), "parts[0].data")
        self.refused(session, Message.user(["a", ToolCall("c", "n", value)]), "parts[1].arguments")

    def test_tuples_and_text_of_other_types_are_stored_as_lists_and_text(
        self, session: Session
    ) -> None:
        """In metadata, arguments and foreign data, and what is returned is what is stored."""
        given, stored = _typed(), _plain()
        message = Message(
            role="assistant",
            parts=(
                ToolCall("c", "paint", given),
                Raw("x", given),
                ToolResult("c", (Raw("x", given),)),
            ),
            metadata=given,
        )
        with session.turn() as turn:
            returned = turn.add(message)
        assert session.messages() == [returned]
        assert returned.metadata == stored
        assert returned.parts == (
            ToolCall("c", "paint", stored),
            Raw("x", stored),
            ToolResult("c", (Raw("x", stored),)),
        )
        assert {type(text) for text in (*returned.metadata, returned.metadata["red"])} == {str}

    def test_a_retry_may_have_them_or_not(self, session: Session) -> None:
        """A message is the same with a tuple or a list, an enum or its text."""
        message = Message.user("a", metadata=_typed())
        head = session.append(message)
        assert session.append(message, session.messages()[0]) == head
        assert session.head() == head

    def test_a_draft_may_have_them(self, session: Session) -> None:
        """Its message is the one that is stored."""
        with session.turn() as turn, turn.stream() as reply:
            reply.tool_call("c", "paint", _typed())
        assert session.messages() == [reply.message]
        assert session.messages()[0].tool_calls[0].arguments == _plain()

    def test_metadata_and_goal_of_a_session_may_have_them(self, store: Store) -> None:
        """A key is that of its text, whatever its type."""
        session = store.create(metadata=_typed())
        assert session.info().metadata == _plain()
        assert session.fork(metadata=_typed()).info().metadata == _plain()
        changes: dict[str, Any] = {_Colour.RED: ("green",), "pair": None}
        changed = session.update(metadata=changes)
        assert changed.metadata == session.info().metadata == {"red": ["green"], "name": "Ann"}
        assert session.update(metadata={_Name("name"): None}).metadata == {"red": ["green"]}
        goal = session.update(goal=Goal("paint", state=_State.PAUSED)).goal  # type: ignore[arg-type]
        assert goal == Goal("paint", state="paused")

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"role": "boss"}, "role"),
            ({"role": "summary"}, "role"),
            ({"role": None}, "role"),
            ({"id": ""}, "id"),
            ({"id": 7}, "id"),
            ({"id": "x" * 4097}, "id"),
            ({"created_at": datetime(2024, 1, 1)}, "created_at"),  # noqa: DTZ001 - that is the case
            ({"created_at": "2024-01-01"}, "created_at"),
            ({"status": "damaged"}, "status"),
            ({"status": "done"}, "status"),
            ({"name": 5}, "name"),
            ({"name": b"Ann"}, "name"),
            ({"name": datetime(2024, 1, 1, tzinfo=UTC)}, "name"),
            ({"model": b"m"}, "model"),
            ({"model": Decimal(1)}, "model"),
            ({"usage": 5}, "usage"),
            ({"usage": Usage(input=-1)}, "usage.input"),
            ({"usage": Usage(output=1.5)}, "usage.output"),  # type: ignore[arg-type]
            ({"usage": Usage(reasoning=2**60)}, "usage.reasoning"),
            ({"cost": Decimal("NaN")}, "cost"),
            ({"cost": Decimal(-1)}, "cost"),
            ({"cost": "cheap"}, "cost"),
            ({"cost": Decimal(10**9)}, "cost"),
            ({"cost": True}, "cost"),
            ({"metadata": None}, "metadata"),
            ({"metadata": []}, "metadata"),
            ({"provenance": "x"}, "provenance"),
            ({"provenance": Provenance(b"x")}, "provenance"),  # type: ignore[arg-type]
            ({"parts": "text"}, "parts"),
            ({"parts": None}, "parts"),
            ({"parts": ("text",)}, "parts[0]"),
            ({"parts": (Text("ok"), None)}, "parts[1]"),
            ({"parts": (Text(5),)}, "parts[0].text"),  # type: ignore[arg-type]
            ({"parts": (Text(b"bytes"),)}, "parts[0].text"),  # type: ignore[arg-type]
            ({"parts": (Text(None),)}, "parts[0].text"),  # type: ignore[arg-type]
            ({"parts": (Thinking("t", b"sig"),)}, "parts[0].signature"),  # type: ignore[arg-type]
            ({"parts": (ToolCall(b"c", "n"),)}, "parts[0].id"),  # type: ignore[arg-type]
            ({"parts": (ToolCall("c", 5),)}, "parts[0].name"),  # type: ignore[arg-type]
            ({"parts": (ToolResult("c", b"bytes"),)}, "parts[0]"),  # type: ignore[arg-type]
            ({"parts": (ToolResult("c", error=1),)}, "parts[0].error"),  # type: ignore[arg-type]
            ({"parts": (ToolResult("c", (Thinking("x"),)),)}, "parts[0].content[0]"),  # type: ignore[arg-type]
            ({"parts": (ToolResult("c", (Text(b"x"),)),)}, "parts[0].content[0]"),  # type: ignore[arg-type]
            ({"parts": (Raw(b"x", 1),)}, "parts[0].source"),  # type: ignore[arg-type]
            ({"parts": (File(),)}, "parts[0].sha256"),
            ({"parts": (File(data="text"),)}, "parts[0].data"),  # type: ignore[arg-type]
            ({"parts": (File(data=b"x", sha256="0" * 64),)}, "sha256"),
            ({"parts": (File(sha256="A" * 64),)}, "parts[0].sha256"),
            ({"parts": (File(name=b"x", data=b"x"),)}, "parts[0].name"),  # type: ignore[arg-type]
        ],
    )
    def test_a_bad_value_is_refused(
        self, session: Session, fields: dict[str, Any], field: str
    ) -> None:
        """`BadMessage` names the field, and nothing is stored, appended or through a turn."""
        message = Message(**{"role": "assistant", **fields})
        self.refused(session, message, field)
        with session.turn() as turn, pytest.raises(BadMessage):
            turn.add(message)
        with pytest.raises(BadMessage):
            session.enqueue(message)
        assert session.messages() == []
        assert session.queued() == []

    def refused(self, session: Session, message: Message, field: str) -> None:
        """Assert that a message is refused for this field, and that nothing of it is stored."""
        head = session.head()
        with pytest.raises(BadMessage) as refused:
            session.append(Message.user("before"), message)
        assert field in str(refused.value)
        assert session.head() == head
