"""The query language of a search.

A query is a list of conditions that must all hold:

    word  it's  gateway/run.py     a word, or several adjacent ones
    "two words"                    a phrase: adjacent words in this order
    pre*  "two wo"*                the last word is a prefix
    -word  -"two words"            must not occur
    title:word  title:"two words"  in the title of the session
    role:tool                      system, user, assistant, tool or summary
    scope:x  agent:x  session:x    in these sessions
    since:7d  until:2026-01-31     h, d, w, m (months), y ago; a day, a month, a year; day and time

Anything else is text, so every string of up to `MAX_QUERY_CHARS` characters and `MAX_QUERY_WORDS`
words is a valid query: `TODO: fix` and `a:b` are words, an
unclosed quote is a character, `AND` is a word, `--flag` and `->` exclude nothing, `role:nobody` are
two words. Of two filters of one kind the last one counts. A term of punctuation only (`==`) has no
words; it is searched for literally, which an index of words cannot do. A lone `-`, `*` or `"` is
ignored. `literal` takes the whole query as one phrase.

`since` is inclusive, `until` exclusive. A day, month or year means all of it, so `until:2026-01-31`
ends when February begins, in the time zone of `now`.

A single name is also searched for by its parts: `userName` finds `getUserName`.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import MINYEAR, UTC, datetime, timedelta, tzinfo
from typing import Final, get_args

import msgspec

from holdfast.errors import BadQuery
from holdfast.search.tokenize import parts, spans
from holdfast.values import Role

MAX_QUERY_CHARS: Final = 10_000
MAX_QUERY_WORDS: Final = 2_000  # each is looked up in every text that has the others


class Term(msgspec.Struct, frozen=True, gc=False):
    """Adjacent words; with `prefix` the last one is the beginning of a word.

    If the term is a name, `parts` are the parts of it. A term without `tokens` is searched for
    literally, as `raw`.
    """

    tokens: tuple[str, ...]
    prefix: bool
    excluded: bool
    raw: str
    parts: tuple[str, ...] = ()


class Filters(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Conditions apart from the words. `since` is inclusive, `until` exclusive."""

    role: Role | None = None
    scope: str | None = None
    agent: str | None = None
    session: str | None = None
    title: tuple[Term, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


class Query(msgspec.Struct, frozen=True, gc=False):
    """Terms and filters. Without wanted terms a query lists all messages that pass the rest."""

    terms: tuple[Term, ...] = ()
    filters: Filters = Filters()

    @property
    def wanted(self) -> tuple[Term, ...]:
        """The terms that must occur, in the order of a match's frequencies."""
        return tuple(term for term in self.terms if not term.excluded)

    @property
    def unwanted(self) -> tuple[Term, ...]:
        """The terms that must not occur."""
        return tuple(term for term in self.terms if term.excluded)

    @property
    def needs_scan(self) -> bool:
        """True if a term has no words, so that it can only be checked in the texts."""
        return any(not term.tokens for term in self.terms)


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A part of a query up to white space, or a quotation, with its sign and its field."""

    excluded: bool
    field: str
    value: str
    starred: bool
    whole: str


_FIELDS: Final = ("role", "scope", "agent", "session", "title", "since", "until")
_HEAD: Final = re.compile(rf"(-?)(?:({'|'.join(_FIELDS)}):)?(?=\S)")
_BARE: Final = re.compile(r"\S+")
_QUOTES: Final = {'"': '"', "\u201c": "\u201d"}
_IGNORED: Final = frozenset({"-", "*", *_QUOTES, *(f"-{quote}" for quote in _QUOTES)})
_NO_EXCLUSION: Final = ("-", ">", "=")
_AGO: Final = re.compile(r"([0-9]{1,5})([hdwmy])")
_DAY: Final = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}\S*")


def parse(text: str, *, literal: bool = False, now: datetime) -> Query:
    """Parse a query; raise `BadQuery` if it is too long."""
    if len(text) > MAX_QUERY_CHARS:
        raise BadQuery(
            f"text: a query of {len(text):,} characters is over the limit of {MAX_QUERY_CHARS:,}; "
            "search for a few words of it."
        )
    query = _parse(text, literal=literal, now=now)
    words = sum(max(len(term.tokens), 1) for term in (*query.terms, *query.filters.title))
    if words > MAX_QUERY_WORDS:
        raise BadQuery(
            f"text: a query of {words:,} words is over the limit of {MAX_QUERY_WORDS:,}; search "
            "for a few of them."
        )
    return query


def _parse(text: str, *, literal: bool, now: datetime) -> Query:
    if literal:
        return Query((_term(text.strip()),)) if text.strip() else Query()
    terms: dict[tuple[object, ...], Term] = {}
    filters = Filters()
    for item in _items(text):
        extended = _add_filter(filters, item, now)
        if extended is not None:
            filters = extended
        elif (term := _text_term(item)) is not None:
            terms.setdefault(_identity(term), term)
    return Query(tuple(terms.values()), filters)


def _identity(term: Term) -> tuple[object, ...]:
    """Return the key by which terms that differ only in spelling are recognised as the same."""
    return (term.tokens or term.raw, term.prefix, term.excluded, term.parts)


# ------------------------------------------------------------------------------------------ items


def _items(text: str) -> Iterator[_Item]:
    last = {closing: text.rfind(closing) for closing in _QUOTES.values()}
    at = 0
    while (bare := _BARE.search(text, at)) is not None:
        head = _HEAD.match(text, bare.start())
        start = bare.start() if head is None else head.end()
        sign, field = ("", "") if head is None else head.groups("")
        closing = _QUOTES.get(text[start])
        if closing is not None and last[closing] > start:
            end = text.index(closing, start + 1)
            value, starred, at = text[start + 1 : end], text.startswith("*", end + 1), end + 1
            at += starred
        else:
            value, starred, at = *_strip_star(text[start : bare.end()]), bare.end()
        yield _Item(bool(sign), field, value, starred, text[bare.start() : at])


def _strip_star(value: str) -> tuple[str, bool]:
    """Strip the star of a prefix, and return whether there was one; `**bold**` has none."""
    starred = value.endswith("*") and value.count("*") == 1 and value != "*"
    return (value[:-1], True) if starred else (value, False)


# ------------------------------------------------------------------------------------------ terms


def _text_term(item: _Item) -> Term | None:
    if item.whole in _IGNORED:
        return None
    if item.field or not item.value.strip():
        return _words_only(item)
    if not item.excluded:
        return _term(item.value, starred=item.starred)
    term = _term(item.value, excluded=True, starred=item.starred)
    is_exclusion = term.tokens and not item.value.startswith(_NO_EXCLUSION)
    return term if is_exclusion else _term(item.whole)


def _words_only(item: _Item) -> Term | None:
    """Return an item that looks like a filter, but is not, as text; None if it has no words."""
    term = _term(item.whole.removeprefix("-"), excluded=item.excluded)
    return term if term.tokens else None


def _term(raw: str, *, excluded: bool = False, starred: bool = False) -> Term:
    found = spans(raw)
    prefix = starred and bool(found) and found[-1][2] == len(raw)
    raw = f"{raw}*" if starred and not prefix else raw
    tokens = tuple(token for token, _, _ in found)
    inner = tuple(parts(raw)[:-1]) if len(tokens) == 1 else ()  # without `NAME_END`
    return Term(tokens, prefix, excluded, raw, inner)


# ---------------------------------------------------------------------------------------- filters


def _add_filter(filters: Filters, item: _Item, now: datetime) -> Filters | None:
    """Return the filters with an item added; None if the item is not a filter."""
    value = f"{item.value}*" if item.starred else item.value
    if not item.field or not value.strip():
        return None
    if item.field == "title":
        return _add_title_filter(filters, item)
    if item.excluded:
        return None
    match item.field:
        case "since" | "until":
            time = _parse_time(value, now, end=item.field == "until")
            return msgspec.structs.replace(filters, **{item.field: time}) if time else None
        case "role":
            role = value.casefold()
            return msgspec.structs.replace(filters, role=role) if role in get_args(Role) else None
        case _:
            return msgspec.structs.replace(filters, **{item.field: value})


def _add_title_filter(filters: Filters, item: _Item) -> Filters | None:
    if item.value in _IGNORED:
        return None
    term = _term(item.value, excluded=item.excluded, starred=item.starred)
    return msgspec.structs.replace(filters, title=(*filters.title, term))


def _parse_time(text: str, now: datetime, *, end: bool) -> datetime | None:
    """Parse a time; of a day, a month or a year return the start or the end. None if invalid."""
    here = now if now.tzinfo is not None else now.replace(tzinfo=UTC)
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            return _before(here, int(ago[1]), ago[2])
        if (day := _DAY.fullmatch(text)) is not None:
            return _bound(day, here.tzinfo, end=end)
        if _TIME.fullmatch(text):
            time = datetime.fromisoformat(text)
            return time if time.tzinfo is not None else time.replace(tzinfo=here.tzinfo)
    except (ValueError, OverflowError):  # not a date of the calendar
        return None
    return None


def _before(now: datetime, count: int, unit: str) -> datetime:
    if unit in "my":
        return _months_before(now, count * (12 if unit == "y" else 1))
    hours = {"h": 1, "d": 24, "w": 24 * 7}[unit] * count
    return (now.astimezone(UTC) - timedelta(hours=hours)).astimezone(now.tzinfo)


def _months_before(now: datetime, count: int) -> datetime:
    year, month = divmod(now.year * 12 + now.month - 1 - count, 12)
    if year < MINYEAR:
        raise OverflowError
    last_day = monthrange(year, month + 1)[1]  # one month before 31 March is the end of February
    return now.replace(year=year, month=month + 1, day=min(now.day, last_day))


def _bound(found: re.Match[str], zone: tzinfo | None, *, end: bool) -> datetime:
    year, month, day = (int(number) if number else None for number in found.groups())
    first = datetime(year or 0, month or 1, day or 1, tzinfo=zone)
    if not end:
        return first
    if day is not None:
        return first + timedelta(days=1)
    if month is not None:
        return (first + timedelta(days=31)).replace(day=1)
    return first.replace(year=first.year + 1)


# -------------------------------------------------------------------------------------- describing


def describe(query: Query) -> str:
    """Return a description of how a query was parsed."""
    filters = query.filters
    conditions = [_describe_term(term) for term in query.terms]
    conditions += [f"title {_describe_term(term)}" for term in filters.title]
    named = {
        "role": filters.role,
        "scope": filters.scope,
        "agent": filters.agent,
        "session": filters.session,
        "since": filters.since and filters.since.isoformat(timespec="minutes"),
        "before": filters.until and filters.until.isoformat(timespec="minutes"),
    }
    conditions += [f"{name} {value}" for name, value in named.items() if value is not None]
    return ", ".join(conditions) or "everything"


def _describe_term(term: Term) -> str:
    words = " ".join(term.tokens) or term.raw
    return f'{"not " if term.excluded else ""}"{words}{"…" if term.prefix else ""}"'
