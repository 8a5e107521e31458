"""Strategies for messages: any text, any JSON."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

from hypothesis import strategies as st

from holdfast.values import (
    JSON,
    File,
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

# Every code point: NUL, lone surrogates and unassigned ones included.
texts = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    ["\0", "\ud800", "\ud83d\ude00", "\U0001f600", "\ufeff", "\x7f", '"', "\\ud800", "\u2028"]
)
names = texts.filter(bool)

numbers = (
    st.integers()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**60])
    | st.floats(allow_nan=False, allow_infinity=False)
)
json_values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)

offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
times = st.datetimes(
    datetime(1, 1, 3),  # noqa: DTZ001 - the zone is drawn
    datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.just(UTC) | offsets,
)
costs = st.decimals(0, 1_000, places=12) | st.decimals(0, 1, places=3) | st.just(Decimal("1E-12"))
counts = st.integers(0, 2**40)
usages = st.builds(Usage, counts, counts, counts, counts, counts)

# Sizes below and above the threshold for blobs.
bulky = st.builds(
    lambda letter, size: letter * size,
    st.sampled_from(["x", "é", "\0", "\ud800", '"']),
    st.sampled_from([4_096, 65_000, 70_000]),
)
anything = st.one_of(*[texts] * 9, bulky)

files = st.builds(File, name=st.none() | texts, mime=st.none() | texts, data=st.binary(max_size=64))
raws = st.builds(Raw, texts, json_values)
results = st.builds(
    ToolResult,
    texts,
    anything | st.lists(st.builds(Text, texts) | raws | files, max_size=3).map(tuple),
    error=st.booleans(),
    name=st.none() | texts,
)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, anything),
    st.builds(Thinking, anything, st.none() | texts),
    st.builds(ToolCall, texts, texts, st.one_of(*[json_values] * 9, bulky)),
    results,
    raws,
    files,
)
messages = st.builds(
    Message,
    id=names,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(parts, max_size=4).map(tuple),
    created_at=st.none() | times,
    status=st.sampled_from(["complete", "partial"]),
    name=st.none() | texts,
    model=st.none() | texts,
    usage=st.none() | usages,
    cost=st.none() | costs,
    metadata=json_objects,
    provenance=st.none() | st.builds(Provenance, texts, st.none() | texts),
)
