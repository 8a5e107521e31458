"""Reads on PostgreSQL: resume, list and search, each beside hand-written SQL.

The hand-written SQL, and what it leaves out, is in `bench/by_hand.py`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

import holdfast
from bench import material
from bench.by_hand import PAGE, TOP, ByHand, Json
from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import Plan
from bench.texts import CreatedMessage, Question, Texts, create_conversations, spaced
from holdfast.values import Hit, Page

TENANT: Final = UUID(int=1)
_BAR: Final = 1.5
_REPEAT: Final = 5
_PHRASE: Final = re.compile(r'"([^"]*)"( \*)?')
_SESSIONS: Final = """
WITH made AS (
  INSERT INTO sessions (tenant, id, key, scope, agent, title, title_by, model)
  SELECT %(tenant)s, 'bench' || n, 'customer-' || n, CASE WHEN n %% 100 = 0 THEN 'returns'
    ELSE 'support' END, 'bench', 'Parcel ' || n, 'auto', 'model-1'
  FROM generate_series(1, %(count)s) AS n RETURNING n
)
INSERT INTO heads (tenant, session, seq, turns, updated_at, preview)
SELECT %(tenant)s, n, 24, 6, now() + n * interval '1 microsecond', %(preview)s FROM made
"""


class ReadTarget(msgspec.Struct, frozen=True):
    """The URLs of the store and of the database, and a function that vacuums the server."""

    store: str
    database: str
    settle: Callable[[], None]


def reading(plan: Plan, target: ReadTarget) -> Iterator[Result]:
    """Measure all three; both sides have the histories `flat N`."""
    yield from _resume(plan, target)
    for number, size in enumerate(plan.sizes.lists):
        yield _list(plan, target, size, UUID(int=100 + number))
    for number, messages in enumerate(plan.sizes.searched_on_server):
        yield _search(plan, target, messages, UUID(int=200 + number))


def _beside(what: str, found: list[list[Times]], more: str = "") -> Result:
    ours, theirs = found
    share = ratio(ours, theirs)
    return Result(
        name="postgres",
        what=f"PostgreSQL: {what}",
        value=median(ours),
        figure=f"{millis(median(ours))} (by hand {millis(median(theirs))}{more})",
        ratio=share,
        of="by hand",
        bar=f"≤ {_BAR} {TIMES} by hand",
        met=share <= _BAR,
    )


def _repeated(work: Callable[[], object]) -> Callable[[], Times]:
    return lambda: [timed(work) for _ in range(_REPEAT)]


# ----------------------------------------------------------------------------------------- resume


def _resume(plan: Plan, target: ReadTarget) -> Iterator[Result]:
    with holdfast.open(target.store) as store, ByHand(target.database, TENANT) as hand:
        for length in plan.sizes.histories[1:]:
            key = f"flat {length}"
            ours = _repeated(partial(_last, store, key))
            theirs = _repeated(partial(_last_by_hand, hand, key))
            alternate(2, ours, theirs)
            found = alternate(plan.sizes.rounds, ours, theirs)
            yield _beside(f"a session and the last {PAGE} of {length:,}", found)


def _last(store: holdfast.Store, key: str) -> None:
    assert len(store.session(key).messages(limit=PAGE)) == PAGE


def _last_by_hand(hand: ByHand, key: str) -> None:
    session, messages = hand.resume(key)
    assert session["state"] == "done"
    assert len(messages) == PAGE


# ------------------------------------------------------------------------------------------- list


def _list(plan: Plan, target: ReadTarget, size: int, tenant: UUID) -> Result:
    with (
        holdfast.open(target.store, tenant=f"many {size}", durability="process") as store,
        ByHand(target.database, tenant) as hand,
    ):
        material.add_sessions(store, size)
        hand.fill(_SESSIONS, {"count": size, "preview": material.prose(120, 1)})
        target.settle()
        ours = _repeated(partial(_page, store))
        theirs = _repeated(partial(_page_by_hand, hand))
        alternate(2, ours, theirs)
        found = alternate(plan.sizes.rounds, ours, theirs)
    return _beside(f"list {PAGE} of {size:,}", found)


def _page(store: holdfast.Store) -> None:
    page = store.sessions(limit=PAGE)
    assert len(page.items) == PAGE
    assert page.cursor is not None


def _page_by_hand(hand: ByHand) -> None:
    sessions, more = hand.page()
    assert len(sessions) == PAGE
    assert more


# ----------------------------------------------------------------------------------------- search


def _search(plan: Plan, target: ReadTarget, messages: int, tenant: UUID) -> Result:
    """Run the same queries as the benchmark of SQLite files."""
    questions = Texts().questions(messages)
    with (
        holdfast.open(target.store, tenant=f"searched {messages}", durability="process") as store,
        ByHand(target.database, tenant) as hand,
    ):
        _fill(store, hand, messages)
        caught_up = timed(store.catch_up_index)
        target.settle()
        ours, theirs = partial(_ask, store, questions), partial(_ask_by_hand, hand, questions)
        alternate(1, ours, theirs)
        found = alternate(plan.sizes.search_rounds, ours, theirs)
    worst = [_p99(rounds) for rounds in found]
    return _beside(
        f"search in {messages:,}, top {TOP} with snippets",
        found,
        more=f"; p99 {millis(worst[0])} and {millis(worst[1])}; indexed in {caught_up:.0f} s",
    )


def search_both(
    target: ReadTarget, messages: int, tenant: UUID
) -> Iterator[tuple[Question, Page[Hit], list[Json]]]:
    """Run all queries on both; return what each found, for comparison."""
    with (
        holdfast.open(target.store, durability="process") as store,
        ByHand(target.database, tenant) as hand,
    ):
        _fill(store, hand, messages)
        store.catch_up_index()
        for one in Texts().questions(messages):
            theirs = hand.search(_query(one.theirs), one.role, one.scope)
            yield one, store.search(one.ours, limit=TOP), theirs


def _p99(rounds: list[Times]) -> float:
    times = [seconds for times in rounds for seconds in times]
    return statistics.quantiles(times, n=100, method="inclusive")[-1]


def _fill(store: holdfast.Store, hand: ByHand, messages: int) -> None:
    """Create the same texts in both; in the hand-written one a title is a text before the first."""
    numbers: dict[int, int] = {}
    connection = hand.connection
    with connection.transaction(), connection.cursor() as cursor:
        connection.execute("DELETE FROM texts")  # The hand-written index has no tenants.
        connection.execute("SELECT set_config('app.tenant', %s, true)", (str(hand.tenant),))
        created = list(create_conversations(store, messages))
        for one in created:
            if one.session not in numbers:
                numbers[one.session] = _add_talk(hand, one)
        with cursor.copy(
            "COPY texts (tenant, session, seq, id, role, at, body) FROM STDIN"
        ) as copy:
            for one in created:
                where = (hand.tenant, numbers[one.session])
                if one.seq == 1:
                    copy.write_row((*where, 0, None, None, one.at, one.title))
                said = spaced(one.text)
                copy.write_row((*where, one.seq, one.id, one.role, one.at, said))


def _add_talk(hand: ByHand, created: CreatedMessage) -> int:
    row = hand.connection.execute(
        "INSERT INTO sessions (tenant, id, scope, title) VALUES (%s, %s, %s, %s) RETURNING n",
        (hand.tenant, f"said{created.session}", created.scope, created.title),
    ).fetchone()
    assert row is not None
    number: int = row["n"]
    return number


def _ask(store: holdfast.Store, questions: Sequence[Question]) -> Times:
    return [timed(partial(_found, store, one)) for one in questions]


def _found(store: holdfast.Store, question: Question) -> None:
    assert store.search(question.ours, limit=TOP), question


def _ask_by_hand(hand: ByHand, questions: Sequence[Question]) -> Times:
    return [timed(partial(_found_by_hand, hand, one)) for one in questions]


def _found_by_hand(hand: ByHand, question: Question) -> None:
    assert hand.search(_query(question.theirs), question.role, question.scope), question


def _query(theirs: str) -> str:
    """Translate a query to the server's grammar: phrases, all of them required."""
    phrases = []
    for words, beginning in _PHRASE.findall(theirs):
        end = ":*" if beginning else ""
        phrases.append("(" + " <-> ".join(f"'{word}'{end}" for word in words.split()) + ")")
    return " & ".join(phrases)
