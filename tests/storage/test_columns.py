"""Columns are declared by the fields of rows: which they are, and how rows are taken apart."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.operations.session_fields import readable_fields, to_fields, to_row
from holdfast.storage.columns import (
    Added,
    Column,
    Count,
    Derived,
    JsonOf,
    Layout,
    Name,
    Number,
    Text,
    Time,
    columns_of,
)
from holdfast.storage.rows import HeadRow, SessionRow, ToolRow, TurnRow, UsageRow
from holdfast.transfer.format import SessionLine
from holdfast.values import Goal, Holder, MeasuredTokens, SessionInfo, Usage


class Row(msgspec.Struct, frozen=True):
    n: Number
    name: Name | None
    shown: Annotated[str, Derived()]
    text: Text
    state: Literal["on", "off"]
    flag: bool
    plain: int
    usage: Usage
    holder: Annotated[Holder, JsonOf(Holder)]
    data: Annotated[bytes, JsonOf(dict)]
    at: Time
    late: Annotated[Name | None, Added()] = None


def test_a_field_declares_its_column() -> None:
    """Nested counts are a column each, a derived field has none."""
    counts = [Column(name, "count") for name in Usage.__struct_fields__]
    assert columns_of(Row) == (
        Column("n", "number"),
        Column("name", "name", optional=True),
        Column("text", "text"),
        Column("state", "choice", choices=("on", "off")),
        Column("flag", "flag"),
        Column("plain", "integer"),
        *counts,
        Column("holder", "struct", type=Holder),
        Column("data", "json", type=dict),
        Column("at", "time"),
        Column("late", "name", optional=True, added=True),
    )


_NUMBERS = st.integers(0, 2**63 - 1)
_NAMES = st.text(min_size=1)
_USAGE = st.builds(Usage, *[_NUMBERS] * 5)
_ROWS = {
    SessionRow: st.builds(
        SessionRow,
        n=_NUMBERS,
        id=_NAMES,
        key=st.none() | _NAMES,
        title=st.none() | _NAMES,
        pinned=st.booleans(),
        goal=st.none() | st.just(b'{"objective":"x"}'),
        relation=st.sampled_from([None, "fork"]),
        trashed_at=st.none() | _NUMBERS,
    ),
    HeadRow: st.builds(
        HeadRow, *[_NUMBERS] * 8, _USAGE, _NUMBERS, st.none() | st.text(), *[_NUMBERS] * 3
    ),
    TurnRow: st.builds(
        TurnRow, _NUMBERS, _NUMBERS, st.text(), st.just("open"), st.none() | _NAMES, st.none(),
        st.builds(Holder, st.text(), _NUMBERS, st.text(), st.text(), st.text()), *[_NUMBERS] * 4,
        _USAGE, _NUMBERS, st.none() | st.text(),
    ),
    ToolRow: st.builds(
        ToolRow, _NUMBERS, _NUMBERS, st.text(), st.none() | st.text(), st.just("done"),
        st.none() | _NUMBERS, st.none(),
    ),
    UsageRow: st.builds(
        UsageRow, _NUMBERS, st.none() | st.text(), _USAGE, _NUMBERS,
        st.builds(MeasuredTokens, _NUMBERS, _NUMBERS),
    ),
}  # fmt: skip


@given(st.data())
@pytest.mark.parametrize("kind", _ROWS)
def test_a_row_comes_back_from_its_columns(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """Whatever each kind of value is converted to, and with NULL left as it is."""
    row = data.draw(_ROWS[kind])
    layout = Layout(
        kind,
        encode={"name": codec.encode_text, "text": codec.encode_text, "flag": int},
        decode={"name": codec.decode_text, "text": codec.decode_text, "flag": bool},
    )
    values = layout.values(row)
    assert len(values) == len(layout.names) == len(columns_of(kind))
    assert not any(
        isinstance(value, str | msgspec.Struct) for value in values if value not in _WORDS
    )
    assert layout.row(values) == row


_WORDS = {"fork", "open", "done"}  # choices are stored as they are


@given(_ROWS[SessionRow])
def test_a_session_comes_back_from_its_fields(row: SessionRow) -> None:
    fields = to_fields(row)
    assert to_row(fields) == msgspec.structs.replace(row, n=0)


def test_every_field_of_a_session_is_exported_and_shown() -> None:
    """A new column that a line of an export lacks would be lost on the way to another store."""
    names = {column.name for column in columns_of(SessionRow)} - {"n"}
    assert names - {"id"} | {"session"} == set(SessionLine.__struct_fields__)
    assert names - {"trashed_at", "purged_at"} <= set(SessionInfo.__struct_fields__)


def test_of_a_damaged_session_each_value_of_the_right_type_is_shown() -> None:
    wrong: dict[str, Any] = {"key": 5, "title_by": "nobody", "created_at": 2**70, "pinned": 7}
    damaged = SessionRow(1, "id", title="t", goal=b"{", relation="fork", **wrong)
    found = readable_fields(damaged)
    assert (found["id"], found["title"], found["relation"]) == ("id", "t", "fork")
    assert (found["key"], found["title_by"], found["pinned"], found["goal"]) == (
        None,
        None,
        False,
        None,
    )
    assert found["created_at"].year == 1970
    assert found["metadata"] == {}
    assert readable_fields(None)["id"] is None


def test_a_goal_without_its_fields_is_no_goal() -> None:
    with pytest.raises(Damaged, match="goal of a session"):
        to_fields(SessionRow(1, "id", goal=b"{}"))


def test_json_of_a_session_is_decoded() -> None:
    goal = Goal(objective="win")
    row = SessionRow(1, "id", goal=codec.to_json(goal), metadata=b'{"a":1}')
    fields = to_fields(row)
    assert (fields["goal"], fields["metadata"]) == (goal, {"a": 1})


def test_a_count_is_no_number() -> None:
    class Small(msgspec.Struct):
        count: Count
        number: Number

    assert [column.kind for column in columns_of(Small)] == ["count", "number"]
