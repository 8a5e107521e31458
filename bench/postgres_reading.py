"""Reading on PostgreSQL: resume, list and search, each beside SQL written by hand.

By hand, a session is found by its key and its last 50 messages are read, two statements in one
pipeline; a page of the list is one range of an index; a search is the server's own text search over
the same texts, its 20 best by `ts_rank` with a headline each. None of it decodes, checks, knows
tenants or branches, or looks whether a hit may still be seen.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import holdfast
from bench import material
from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import Plan
from bench.texts import Question, Texts, lay, spaced

if TYPE_CHECKING:
    import psycopg

Connect = Callable[[], "psycopg.Connection[Any]"]

_BAR: Final = 1.5
_TOP: Final = 20
_PAGE: Final = 50
_REPEAT: Final = 5
_PHRASE: Final = re.compile(r'"([^"]*)"( \*)?')
_TABLES: Final = """
DROP TABLE IF EXISTS keys, said, listed;
CREATE TABLE keys (key text PRIMARY KEY, session bigint NOT NULL);
CREATE TABLE said (session bigint, seq bigint, id uuid, body bytea, PRIMARY KEY (session, seq));
CREATE TABLE listed (n bigint PRIMARY KEY, activity bigint NOT NULL, title text, preview text);
CREATE INDEX listed_by_activity ON listed (activity);
"""
_TEXTS: Final = """
DROP TABLE IF EXISTS texts;
CREATE TABLE texts (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, role text, scope text, body text,
  words tsvector GENERATED ALWAYS AS (to_tsvector('simple', body)) STORED
);
CREATE INDEX texts_words ON texts USING gin (words);
"""
_ASK: Final = """
SELECT n, ts_headline('simple', body, query, 'MaxFragments=1, MaxWords=24, MinWords=1')
FROM (
  SELECT n, body, query FROM texts, to_tsquery('simple', %s) AS query
  WHERE words @@ query AND role = coalesce(%s, role) AND scope = coalesce(%s, scope)
  ORDER BY ts_rank(words, query) DESC, n DESC LIMIT 20
) AS best
"""


def reading(plan: Plan, where: str, connect: Connect) -> Iterator[Result]:
    """Measure all three in a store that holds the histories `flat N`."""
    with connect() as connection:
        connection.execute(_TABLES)
        yield from _resume(plan, where, connection)
        yield _list(plan, where, connection)
        for messages in plan.sizes.searched:
            yield from _search(plan, where, connection, messages)


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


# ----------------------------------------------------------------------------------------- resume


def _resume(plan: Plan, where: str, connection: psycopg.Connection[Any]) -> Iterator[Result]:
    bodies = [body.encode() for body in material.bodies()]
    for number, length in enumerate(plan.sizes.histories[1:], 1):
        connection.execute("INSERT INTO keys VALUES (%s, %s)", (f"flat {length}", number))
        connection.execute(
            "INSERT INTO said SELECT %s, n, gen_random_uuid(), (%s::bytea[])[n %% 4 + 1]"
            " FROM generate_series(1, %s) AS n",
            (number, bodies, length),
        )
    connection.execute("ANALYZE keys, said")
    with holdfast.open(where) as store:
        for length in plan.sizes.histories[1:]:
            key = f"flat {length}"

            def ours(key: str = key) -> Times:
                work = partial(_last, store, key)
                return [timed(work) for _ in range(_REPEAT)]

            def theirs(key: str = key) -> Times:
                work = partial(_last_by_hand, connection, key)
                return [timed(work) for _ in range(_REPEAT)]

            alternate(2, ours, theirs)
            found = alternate(plan.sizes.rounds, ours, theirs)
            yield _beside(f"a session and the last {_PAGE} of {length:,}", found)


def _last(store: holdfast.Store, key: str) -> None:
    assert len(store.session(key).messages(limit=_PAGE)) == _PAGE


def _last_by_hand(connection: psycopg.Connection[Any], key: str) -> None:
    row = connection.execute("SELECT session FROM keys WHERE key = %s", (key,)).fetchone()
    assert row is not None
    found = connection.execute(
        "SELECT seq, id, body FROM said WHERE session = %s ORDER BY seq DESC LIMIT 50", row
    ).fetchall()
    assert len(found) == _PAGE


# ------------------------------------------------------------------------------------------- list


def _list(plan: Plan, where: str, connection: psycopg.Connection[Any]) -> Result:
    size = plan.sizes.lists[0]
    connection.execute(
        "INSERT INTO listed SELECT n, n, 'Parcel ' || n, repeat('x', 120)"
        " FROM generate_series(1, %s) AS n",
        (size,),
    )
    connection.execute("ANALYZE listed")
    with holdfast.open(where, tenant="many", durability="process") as store:
        material.add_sessions(store, size)
    with holdfast.open(where, tenant="many") as store:

        def ours() -> Times:
            return [timed(partial(store.sessions, limit=_PAGE)) for _ in range(_REPEAT)]

        def theirs() -> Times:
            return [timed(partial(_page_by_hand, connection)) for _ in range(_REPEAT)]

        alternate(2, ours, theirs)
        found = alternate(plan.sizes.rounds, ours, theirs)
    return _beside(f"list {_PAGE} of {size:,}", found)


def _page_by_hand(connection: psycopg.Connection[Any]) -> None:
    found = connection.execute("SELECT * FROM listed ORDER BY activity DESC LIMIT 50").fetchall()
    assert len(found) == _PAGE


# ----------------------------------------------------------------------------------------- search


def _search(
    plan: Plan, where: str, connection: psycopg.Connection[Any], messages: int
) -> Iterator[Result]:
    """Ask for what the benchmark of files asks for; the last size only in a full run."""
    questions = Texts().questions(messages)
    with holdfast.open(where, tenant=f"searched {messages}", durability="process") as store:
        _fill(store, connection, messages)
        caught_up = timed(store.catch_up_index)
        ours, theirs = partial(_ask, store, questions), partial(_ask_by_hand, connection, questions)
        alternate(1, ours, theirs)
        found = alternate(plan.sizes.search_rounds, ours, theirs)
    worst = [_p99(rounds) for rounds in found]
    yield _beside(
        f"search in {messages:,}, top {_TOP} with snippets",
        found,
        more=f"; p99 {millis(worst[0])} and {millis(worst[1])}; indexed in {caught_up:.0f} s",
    )


def _p99(rounds: list[Times]) -> float:
    times = [seconds for times in rounds for seconds in times]
    return statistics.quantiles(times, n=100, method="inclusive")[-1]


def _fill(store: holdfast.Store, connection: psycopg.Connection[Any], messages: int) -> None:
    """Lay down the same texts in both."""
    connection.execute(_TEXTS)
    asked = "COPY texts (role, scope, body) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(asked) as copy:
        for laid in lay(store, messages):
            copy.write_row((laid.role, laid.scope, spaced(laid.text)))
    connection.execute("ANALYZE texts")


def _ask(store: holdfast.Store, questions: Sequence[Question]) -> Times:
    return [timed(partial(store.search, one.ours, limit=_TOP)) for one in questions]


def _ask_by_hand(connection: psycopg.Connection[Any], questions: Sequence[Question]) -> Times:
    return [timed(partial(_found_by_hand, connection, one)) for one in questions]


def _found_by_hand(connection: psycopg.Connection[Any], question: Question) -> None:
    values = (_query(question.theirs), question.role, question.scope)
    assert connection.execute(_ASK, values).fetchall(), question


def _query(theirs: str) -> str:
    """Say a question in the server's grammar: words that follow one another, all of them asked."""
    phrases = []
    for words, beginning in _PHRASE.findall(theirs):
        end = ":*" if beginning else ""
        phrases.append("(" + " <-> ".join(f"'{word}'{end}" for word in words.split()) + ")")
    return " & ".join(phrases)
