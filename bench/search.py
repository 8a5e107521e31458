"""Search: speed beside a bare FTS5 table, speed of indexing, and the cost of the index.

The bare table holds the same texts, with FTS5 as it comes (`unicode61`, the texts kept in a table
beside it), and is queried for its 20 newest matches and for its 20 best by bm25, with a snippet
each. It has no sessions, shows undone messages, and has no other writers. Holdfast groups, ranks,
and reads the log to check that each hit is visible.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import msgspec

import holdfast
from bench import appends, bare, material
from bench.measure import TIMES, Result, Times, alternate, median, micros, millis, ratio, timed
from bench.plan import KEY, Plan, opened
from bench.texts import CreatedMessage, Question, Texts, create_conversations, spaced
from holdfast import Message, Store

_TOP: Final = 20
_MEGABYTE: Final = 1e6
_LARGE: Final = 200_000
_BARS: Final = {
    False: (0.0025, 0.010),
    True: (0.010, 0.050),
}  # median and p99, up to 200,000 and over
_KINDS_WITH_A_BAR: Final = frozenset({"rare word", "two words", "common word"})
_RATE_BAR: Final = 20_000  # messages/s
_INDEX_BAR: Final = 0.7
_BOTH_BAR: Final = 1.7
_APPEND_BAR: Final = 1.1
_BEHIND: Final = 20_000

_SCHEMA: Final = """
CREATE TABLE texts (n INTEGER PRIMARY KEY, role TEXT, scope TEXT, body TEXT);
CREATE VIRTUAL TABLE found USING fts5(body, content = 'texts', content_rowid = 'n');
"""
_FILL: Final = "INSERT INTO texts (role, scope, body) VALUES (?, ?, ?)"
_ASK: Final = """
SELECT found.rowid, snippet(found, 0, '[', ']', '…', 24) FROM found {joined}
WHERE found MATCH ? {filtered} ORDER BY {order} LIMIT 20
"""


class Searched(msgspec.Struct, frozen=True):
    """A store to search in, the bare table beside it, and the figures of building them."""

    path: Path
    bare: Path
    text: int
    catching_up: float
    bare_filling: float


def search(plan: Plan) -> Iterator[Result]:
    """Build stores of several sizes, update the index, and run queries."""
    texts = Texts()
    for messages in plan.sizes.searched:
        built = _build(plan, messages)
        yield _caught_up(built, messages)
        yield from _sizes(built, messages)
        yield from _asked(plan, built, messages, texts.questions(messages))
    yield from _appended(plan)


# --------------------------------------------------------------------------------------- building


def _build(plan: Plan, messages: int) -> Searched:
    path, beside = plan.path(f"searched-{messages}"), plan.path(f"bare-searched-{messages}")
    with holdfast.open(path, durability="process") as store:
        text, filling = _fill(store, beside, messages)
        catching_up = timed(store.catch_up_index)
        status = store.index_status()
        assert (status.state, status.messages) == ("ready", messages)
    return Searched(path, beside, text, catching_up, filling)


def _fill(store: Store, beside: Path, messages: int) -> tuple[int, float]:
    """Create the same texts in both; return their bytes and the seconds of the bare index."""
    size = 0
    connection = bare.connect(beside, "process")
    connection.execute(_SCHEMA)

    def rows() -> Iterator[tuple[str, str, str]]:
        nonlocal size
        for created in create_conversations(store, messages):
            size += len(created.text.encode())
            yield _row(created)

    with connection:
        connection.executemany(_FILL, rows())
    # Text by text in transactions, as with appends to such a table.
    seconds = timed(partial(_index, connection, messages))
    connection.close()
    return size, seconds


def _row(created: CreatedMessage) -> tuple[str, str, str]:
    return created.role, created.scope, spaced(created.text)


def _index(connection: apsw.Connection, messages: int) -> None:
    text = "INSERT INTO found (rowid, body) SELECT n, body FROM texts WHERE n BETWEEN ? AND ?"
    for first in range(1, messages + 1, 500):
        connection.execute(text, (first, min(first + 499, messages)))


def _caught_up(built: Searched, messages: int) -> Result:
    rate, theirs = messages / built.catching_up, messages / built.bare_filling
    speed = built.text / built.catching_up / _MEGABYTE
    return Result(
        name="search",
        what=f"catch up with {messages:,} messages",
        value=rate,
        figure=f"{rate:,.0f} messages/s, {speed:.1f} MB/s (bare {theirs:,.0f})",
        ratio=built.catching_up / built.bare_filling,
        of="bare, time",
        bar=f"≥ {_RATE_BAR:,}/s",
        met=rate >= _RATE_BAR,
    )


def _sizes(built: Searched, messages: int) -> Iterator[Result]:
    index = built.path.with_name(built.path.name + "-search").stat().st_size
    log, theirs = built.path.stat().st_size, built.bare.stat().st_size
    yield _size(f"index of {messages:,} messages", index, built.text, _INDEX_BAR, "")
    beside = f" (bare, with its texts: {theirs / _MEGABYTE:,.0f} MB)"
    yield _size("the same, with the log", log + index, built.text, _BOTH_BAR, beside)


def _size(what: str, size: int, text: int, bar: float, beside: str) -> Result:
    return Result(
        name="search",
        what=what,
        value=size,
        figure=f"{size / _MEGABYTE:,.0f} MB of {text / _MEGABYTE:,.0f} MB of text{beside}",
        ratio=size / text,
        of="text",
        bar=f"≤ {bar} {TIMES} text",
        met=size / text <= bar,
    )


# ---------------------------------------------------------------------------------------- queries


def _asked(
    plan: Plan, built: Searched, messages: int, questions: Sequence[Question]
) -> Iterator[Result]:
    connection = bare.connect(built.bare, "process")
    with holdfast.open(built.path, durability="process") as store:
        for question in questions:
            assert store.search(question.ours, limit=_TOP), question
            assert _bare_search(connection, question, "rowid"), question
        ours, newest, best = alternate(
            plan.sizes.search_rounds,
            lambda: [timed(partial(store.search, one.ours, limit=_TOP)) for one in questions],
            lambda: [timed(partial(_bare_search, connection, one, "rowid")) for one in questions],
            lambda: [timed(partial(_bare_search, connection, one, "bm25")) for one in questions],
        )
    connection.close()
    yield from _in_all(messages, ours, newest, best)
    if messages in {_LARGE, plan.sizes.searched[-1]}:
        yield from _by_kind(messages, questions, ours, newest, best)


def _bare_search(
    connection: apsw.Connection, question: Question, order: str
) -> list[tuple[object, ...]]:
    given = {"role": question.role, "scope": question.scope}
    filters = {name: value for name, value in given.items() if value is not None}
    text = _ASK.format(
        joined="JOIN texts ON texts.n = found.rowid" if filters else "",
        filtered="".join(f"AND texts.{name} = ? " for name in filters),
        order="found.rowid DESC" if order == "rowid" else "found.rank",
    )
    return connection.execute(text, (question.theirs, *filters.values())).fetchall()


def _in_all(
    messages: int, ours: list[Times], newest: list[Times], best: list[Times]
) -> Iterator[Result]:
    middle_bar, worst_bar = _BARS[messages > _LARGE]
    what = f"search {messages:,} messages, top {_TOP} with snippet"
    for kind, measure, bar in (("median", median, middle_bar), ("p99", _p99, worst_bar)):
        found = measure(ours)
        beside = f"{millis(measure(newest))} newest, {millis(measure(best))} bm25"
        yield Result(
            name="search",
            what=what if kind == "median" else f"the same: {kind}",
            value=found,
            figure=f"{millis(found)} (bare: {beside})",
            ratio=found / measure(best),
            of="bare bm25",
            bar=f"≤ {bar * 1e3:g} ms",
            met=found <= bar,
        )


def _by_kind(
    messages: int,
    questions: Sequence[Question],
    ours: list[Times],
    newest: list[Times],
    best: list[Times],
) -> Iterator[Result]:
    for kind in dict.fromkeys(question.kind for question in questions):
        indexes = [number for number, one in enumerate(questions) if one.kind == kind]
        mine, by_time, by_rank = (
            [[times[number] for number in indexes] for times in rounds]
            for rounds in (ours, newest, best)
        )
        beside = f"{millis(median(by_time))} newest, {millis(median(by_rank))} bm25"
        found, most = median(mine), _BARS[messages > _LARGE][0]
        has_bar = kind in _KINDS_WITH_A_BAR
        yield Result(
            name="search",
            what=f"of {messages:,}: {kind}",
            value=found,
            figure=f"{millis(found)} (bare: {beside})",
            ratio=ratio(mine, by_rank),
            of="bare bm25",
            bar=f"≤ {most * 1e3:g} ms" if has_bar else "",
            met=found <= most if has_bar else None,
        )


def _p99(rounds: Sequence[Times]) -> float:
    times = [seconds for times in rounds for seconds in times]
    return statistics.quantiles(times, n=100, method="inclusive")[-1]


# -------------------------------------------------------------------------------------- appending


def _appended(plan: Plan) -> Iterator[Result]:
    """Append to a store with an index and to one without; search after each append."""
    size = plan.sizes.turns_a_round
    with (
        opened(_short(plan), "process") as (searched, with_index),
        opened(_short(plan), "process") as (_, without),
    ):
        searched.catch_up_index()
        on, off = appends.appends(with_index, size), appends.appends(without, size)
        alternate(2, on, off)
        ours, theirs = alternate(plan.sizes.rounds, on, off)
        searched.catch_up_index()
        after = [_search_after_append(searched, number) for number in range(plan.sizes.rounds)]
    yield Result(
        name="search",
        what="append one turn, with an index, process",
        value=median(ours),
        figure=f"{micros(median(ours))} (without: {micros(median(theirs))})",
        ratio=ratio(ours, theirs),
        of="without",
        bar=f"≤ {_APPEND_BAR} {TIMES} without",
        met=ratio(ours, theirs) <= _APPEND_BAR,
    )
    yield Result(
        name="search",
        what="search for what was appended just now",
        value=statistics.median(after),
        figure=f"{millis(statistics.median(after))}, catching up with it included",
    )
    yield from _appended_meanwhile(plan)


def _short(plan: Plan) -> Path:
    path = plan.path("appended")
    with opened(path, "process") as (store, session):
        material.lengthen(store, session, 1_000)
    return path


def _search_after_append(store: Store, number: int) -> float:
    message = Message.user(f"{material.prose(300, number)} fresh{number}")
    store.session(KEY).append(message)
    started = time.perf_counter()
    found = store.search(f"fresh{number}", limit=_TOP)
    seconds = time.perf_counter() - started
    assert [hit.message_id for hit in found] == [message.id]
    return seconds


def _appended_meanwhile(plan: Plan) -> Iterator[Result]:
    """Append while a thread of the same process updates the index."""
    path = plan.path("meanwhile")
    with opened(path, "process") as (store, session):
        material.lengthen(store, session, _BEHIND)
        alone = appends.appends(session, plan.sizes.turns_a_round)
        alone()
        before = alone()
        store.search("parcel")
        meanwhile: Times = []
        while store.index_status().behind > _BEHIND // 4:
            meanwhile += alone()
    yield Result(
        name="search",
        what="append one turn while the index is being made",
        value=statistics.median(meanwhile),
        figure=(
            f"{micros(statistics.median(meanwhile))}, p99 {micros(_p99([meanwhile]))} "
            f"(alone: {micros(median([before]))}, {micros(_p99([before]))})"
        ),
        ratio=statistics.median(meanwhile) / median([before]),
        of="alone",
    )
