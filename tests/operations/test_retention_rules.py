"""Retention rules: a table of cases, and invariants of all plans."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadQuery
from holdfast.operations.retention_rules import (
    RetentionCandidate,
    RetentionRules,
    RetentionVerdict,
    age_in_words,
    decide,
    parse_duration,
    remaining_bytes,
)

DAY = 86_400_000_000
NOW = 20_000 * DAY


def one(
    id: str,
    *,
    idle: float = 0,
    begun: float | None = None,
    parent: str | None = None,
    scope: str | None = None,
    trashed: float | None = None,
    blocked: str | None = None,
    size: int = 0,
) -> RetentionCandidate:
    """A session that was last written to `idle` days ago."""
    active = NOW - int(idle * DAY)
    return RetentionCandidate(
        id=id,
        parent=parent,
        scope=scope,
        created_at=active if begun is None else NOW - int(begun * DAY),
        active_at=active,
        activity=active,
        trashed_at=None if trashed is None else NOW - int(trashed * DAY),
        blocked=blocked,
        bytes=size,
    )


def rules(
    *,
    older_than: float | None = None,
    idle: float | None = None,
    empty_trash: float | None = None,
    keep_last: int | None = None,
    max_bytes: int | None = None,
    scope: str | None = None,
) -> RetentionRules:
    """Rules, with times in days."""
    days = [None if t is None else int(t * DAY) for t in (older_than, idle, empty_trash)]
    return RetentionRules(
        older_than=days[0],
        idle=days[1],
        empty_trash=days[2],
        keep_last=keep_last,
        max_bytes=max_bytes,
        scope=scope,
    )


CASES: dict[str, tuple[RetentionRules, list[RetentionCandidate], str]] = {
    "no rule": (rules(), [one("a", idle=999), one("b", trashed=999)], ""),
    "idle": (rules(idle=5), [one("a", idle=5), one("b", idle=4.9)], "a"),
    "older, never written to since": (rules(older_than=5), [one("a", idle=5)], "a"),
    "older, still written to": (rules(older_than=5), [one("a", idle=4, begun=99)], ""),
    "older and idle": (rules(older_than=9, idle=2), [one("a", idle=3, begun=9)], "a"),
    "older and idle, too young": (rules(older_than=9, idle=2), [one("a", idle=3, begun=8)], ""),
    "idle at once": (rules(idle=0), [one("a")], "a"),
    "older, idle at once": (rules(older_than=5, idle=0), [one("a", begun=6), one("b")], "a"),
    "keep last": (rules(idle=1, keep_last=1), [one("a", idle=9), one("b", idle=8)], "a"),
    "keep last alone": (rules(keep_last=1), [one("a", idle=2), one("b")], "a"),
    "keep more than there are": (rules(keep_last=9), [one("a", idle=2), one("b")], ""),
    "keep last with size": (
        rules(keep_last=1, max_bytes=0),
        [one("a", idle=2, size=5), one("b", size=5)],
        "a",
    ),
    "scope": (rules(idle=1, scope="s"), [one("a", idle=2, scope="s"), one("b", idle=2)], "a"),
    "blocked": (rules(idle=1), [one("a", idle=2, blocked="it is pinned")], ""),
    "size": (
        rules(max_bytes=10),
        [one("a", idle=3, size=6), one("b", idle=2, size=6), one("c", idle=1, size=4)],
        "a",
    ),
    "size, none left over": (rules(max_bytes=10), [one("a", size=10)], ""),
    "size, the blocked are passed over": (
        rules(max_bytes=5),
        [one("a", idle=3, size=6, blocked="it is pinned"), one("b", idle=2, size=6)],
        "b",
    ),
    "size after age": (
        rules(idle=5, max_bytes=6),
        [one("a", idle=9, size=6), one("b", idle=2, size=6)],
        "a",
    ),
    "size of a scope": (
        rules(max_bytes=6, scope="s"),
        [one("a", idle=9, size=90), one("b", idle=2, size=6, scope="s")],
        "",
    ),
    "a fork lives": (rules(idle=5), [one("a", idle=9), one("b", parent="a")], ""),
    "a fork of another scope lives": (
        rules(idle=5, scope="s"),
        [one("a", idle=9, scope="s"), one("b", parent="a", scope="t", idle=9)],
        "",
    ),
    "a fork is in the trash": (
        rules(idle=5),
        [one("a", idle=9), one("b", parent="a", trashed=1)],
        "a",
    ),
    "a family goes, forks first": (
        rules(idle=5),
        [one("a", idle=9), one("b", parent="a", idle=8), one("c", parent="b", idle=7)],
        "cba",
    ),
    "a family, by size": (
        rules(max_bytes=0),
        [one("a", idle=9, size=1), one("b", parent="a", idle=8, size=1)],
        "ba",
    ),
    "a family of which one is blocked": (
        rules(idle=5),
        [one("a", idle=9), one("b", parent="a", idle=8, blocked="x"), one("c", idle=7)],
        "c",
    ),
    "the trash": (rules(empty_trash=5), [one("a", trashed=5), one("b", trashed=4)], "A"),
    "the trash is not listed": (rules(idle=0, max_bytes=0), [one("a", trashed=9, size=9)], ""),
    "the trash of a scope": (
        rules(empty_trash=5, scope="s"),
        [one("a", trashed=9, scope="s"), one("b", trashed=9)],
        "A",
    ),
    "in the trash, a fork lives": (
        rules(empty_trash=5),
        [one("a", trashed=9), one("b", parent="a")],
        "",
    ),
    "in the trash, its fork too, but not for long": (
        rules(empty_trash=5),
        [one("a", trashed=9), one("b", parent="a", trashed=1)],
        "",
    ),
    "in the trash, a family": (
        rules(empty_trash=5),
        [one("a", trashed=9), one("b", parent="a", trashed=8)],
        "BA",
    ),
    "what goes to the trash now is not erased": (
        rules(idle=1, empty_trash=0),
        [one("a", idle=9)],
        "a",
    ),
}


def shown(verdicts: list[RetentionVerdict]) -> str:
    """Lower case ids for trashed sessions, upper case for purged ones, in order."""
    return "".join(
        v.id.upper() if v.action == "purge" else v.id for v in verdicts if v.action is not None
    )


@pytest.mark.parametrize("case", CASES)
def test_who_goes(case: str) -> None:
    """As in the table, for both orders of the candidates."""
    given_rules, candidates, expected = CASES[case]
    assert shown(decide(given_rules, candidates, NOW)) == expected
    assert shown(decide(given_rules, candidates[::-1], NOW)) == expected


def test_who_is_spared_is_told_why() -> None:
    """Sessions that match no rule are not mentioned."""
    found = decide(
        rules(idle=5, keep_last=1, empty_trash=5),
        [
            one("pinned", idle=9, blocked="it is pinned"),
            one("parent", idle=8),
            one("x", parent="parent", idle=1),
            one("y", parent="parent", idle=1),
            one("young", idle=2),
            one("thrown", trashed=9, blocked="it is pinned"),
        ],
        NOW,
    )
    assert {v.id: v.why for v in found} == {
        "pinned": "it is pinned",
        "parent": "session x and 1 more was split off it",
        "thrown": "it is pinned",
    }
    recent = decide(rules(idle=1, keep_last=1), [one("a", idle=5)], NOW)
    assert [(v.action, v.why) for v in recent] == [(None, "it is the most recent")]


IDS = "abcdefgh"
SESSIONS = st.lists(
    st.tuples(
        st.integers(0, 20),  # idle
        st.integers(0, 20),  # begun before that
        st.sampled_from([None, *IDS]),
        st.sampled_from([None, "s"]),
        st.sampled_from([None, None, 3, 9]),
        st.sampled_from([None, None, None, "it is pinned"]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=len(IDS),
)
DAYS = st.none() | st.integers(0, 20)
RULES = st.builds(
    rules,
    older_than=DAYS,
    idle=DAYS,
    empty_trash=DAYS,
    keep_last=st.none() | st.integers(1, 9),
    max_bytes=st.none() | st.integers(0, 40),
)


@given(SESSIONS, RULES)
def test_what_holds_for_every_plan(
    drawn: list[tuple[int, int, str | None, str | None, int | None, str | None, int]],
    asked: RetentionRules,
) -> None:
    """No session goes that must stay, none before its forks; the size limit is met if it can be."""
    candidates = [
        one(
            IDS[at],
            idle=idle_for + at / 100,
            begun=idle_for + before + 1,
            # A session is newer than the one it was forked from.
            parent=parent if parent is not None and parent < IDS[at] else None,
            scope=scope,
            trashed=trashed,
            blocked=blocked,
            size=size,
        )
        for at, (idle_for, before, parent, scope, trashed, blocked, size) in enumerate(drawn)
    ]
    found = decide(asked, candidates, NOW)
    known = {c.id: c for c in candidates}
    gone: set[str] = set()
    assert len({v.id for v in found}) == len(found)
    recent = sorted((c for c in candidates if c.trashed_at is None), key=lambda c: -c.activity)
    kept = {c.id for c in recent[: asked.keep_last or 0]}
    for verdict in found:
        if verdict.action is None:
            continue
        session = known[verdict.id]
        assert session.blocked is None
        assert (session.trashed_at is not None) == (verdict.action == "purge")
        assert verdict.id not in kept
        forks = [c for c in candidates if c.parent == session.id and c.id not in gone]
        assert all(verdict.action == "trash" and c.trashed_at is not None for c in forks)
        gone.add(verdict.id)
    if asked.max_bytes is not None and remaining_bytes(candidates, found, None) > asked.max_bytes:
        left = [c for c in recent if c.id not in gone | kept and c.blocked is None]
        needed = {c.parent for c in recent if c.id not in gone}
        assert all(c.id in needed for c in left)
    if asked == rules():
        assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0h", timedelta(0)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("8w", timedelta(weeks=8)),
        ("6m", timedelta(days=180)),
        ("1y", timedelta(days=365)),
        (timedelta(seconds=1.5), timedelta(seconds=1.5)),
    ],
)
def test_durations(text: str | timedelta, expected: timedelta) -> None:
    """Texts as in a search query, and `timedelta`."""
    assert parse_duration(text, "idle") == expected // timedelta(microseconds=1)
    assert parse_duration(None, "idle") is None


@pytest.mark.parametrize("text", ["", "d", "5", "5s", "-5d", "5 d", "5d ", "٣d", 5, timedelta(-1)])
def test_durations_that_are_none(text: object) -> None:
    """They raise `BadQuery`, which names the field."""
    with pytest.raises(BadQuery, match="idle: expected"):
        parse_duration(text, "idle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (-5, "less than a minute"),
        (59_999_999, "less than a minute"),
        (60_000_000, "1 minute"),
        (2 * 3_600_000_000, "2 hours"),
        (DAY, "1 day"),
        (1500 * DAY, "1,500 days"),
    ],
)
def test_times_are_said_in_words(micros: int, text: str) -> None:
    """Rounded down."""
    assert age_in_words(micros) == text
