"""What is looked for: the grammar of a search.

A query is a list of things that must all be so:

    word  it's  gateway/run.py     a word, or several next to each other
    "two words"                    a phrase: next to each other, in this order
    pre*  "two wo"*                the last word is only a beginning
    -word  -"two words"            must not be there
    title:word  title:"two words"  in the title of the session
    role:tool                      said by: system, user, assistant, tool, summary
    scope:x  agent:x  session:x    of these sessions
    since:7d  until:2026-01-31     h, d, w, m (months), y ago; a day, a month, a year; day and time

Anything else is text, so no string is wrong: `TODO: fix` and `a:b` are words, a quote that is not
closed is a character, `AND` is a word, `--flag` and `->` are no exclusions, `role:nobody` are two
words. Of two filters of one kind the last one counts. What consists of marks alone (`==`) has no
words; it is looked for as it stands, and no index of words can do that. A lone `-`, `*` or `"` is
nothing. `literal` takes the whole query as one phrase.

A time is a moment: `since` counts from it on, `until` up to before it. A day, month or year means
all of it, so `until:2026-01-31` ends when February begins, where `now` is.

A single name is also looked for by its parts: `userName` finds `getUserName`.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import MINYEAR, UTC, datetime, timedelta, tzinfo
from typing import Final, get_args

import msgspec

from holdfast.core.search.words import parts, spans
from holdfast.records import Role


class Term(msgspec.Struct, frozen=True, gc=False):
    """Words that stand next to each other, the last one perhaps only a beginning.

    `parts` is what the term is among the parts of names, if it is a name. Without `tokens` a term
    is looked for as it was written: `raw`.
    """

    tokens: tuple[str, ...]
    prefix: bool
    excluded: bool
    raw: str
    parts: tuple[str, ...] = ()


class Filters(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What must be so beside the words. `since` is included, `until` is not."""

    role: Role | None = None
    scope: str | None = None
    agent: str | None = None
    session: str | None = None
    title: tuple[Term, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


class Query(msgspec.Struct, frozen=True, gc=False):
    """What is looked for. One without terms, or only with exclusions, lists."""

    terms: tuple[Term, ...] = ()
    filters: Filters = Filters()

    @property
    def wanted(self) -> tuple[Term, ...]:
        """The terms that must be there, in the order of a match's frequencies."""
        return tuple(term for term in self.terms if not term.excluded)

    @property
    def unwanted(self) -> tuple[Term, ...]:
        """The terms that must not be there."""
        return tuple(term for term in self.terms if term.excluded)

    @property
    def needs_scan(self) -> bool:
        """Whether a term has no words, so that only the texts themselves can tell."""
        return any(not term.tokens for term in self.terms)


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a query up to white space, or a quotation, and what stands before it."""

    excluded: bool
    field: str
    value: str
    starred: bool
    whole: str


_FIELDS: Final = ("role", "scope", "agent", "session", "title", "since", "until")
_HEAD: Final = re.compile(rf"(-?)(?:({'|'.join(_FIELDS)}):)?(?=\S)")
_BARE: Final = re.compile(r"\S+")
_QUOTES: Final = {'"': '"', "\u201c": "\u201d"}
_NOTHING: Final = frozenset({"-", "*", *_QUOTES, *(f"-{quote}" for quote in _QUOTES)})
_NO_EXCLUSION: Final = ("-", ">", "=")
_AGO: Final = re.compile(r"([0-9]{1,5})([hdwmy])")
_DAY: Final = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}\S*")


def parse(text: str, *, literal: bool = False, now: datetime) -> Query:
    """Understand a query; there is no string that cannot be."""
    if literal:
        return Query((_term(text.strip()),)) if text.strip() else Query()
    terms: dict[tuple[object, ...], Term] = {}
    filters = Filters()
    for item in _items(text):
        understood = _filtered(filters, item, now)
        if understood is not None:
            filters = understood
        elif (term := _text_term(item)) is not None:
            terms.setdefault(_sense(term), term)
    return Query(tuple(terms.values()), filters)


def _sense(term: Term) -> tuple[object, ...]:
    """Return what makes two terms one, however they are written."""
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
            value, starred, at = *_unstarred(text[start : bare.end()]), bare.end()
        yield _Item(bool(sign), field, value, starred, text[bare.start() : at])


def _unstarred(value: str) -> tuple[str, bool]:
    """Take the star off a beginning; `**bold**` and `*.py` are none."""
    starred = value.endswith("*") and value.count("*") == 1 and value != "*"
    return (value[:-1], True) if starred else (value, False)


# ------------------------------------------------------------------------------------------ terms


def _text_term(item: _Item) -> Term | None:
    if item.whole in _NOTHING:
        return None
    if item.field or not item.value.strip():
        return _words_only(item)
    if not item.excluded:
        return _term(item.value, starred=item.starred)
    term = _term(item.value, excluded=True, starred=item.starred)
    is_exclusion = term.tokens and not item.value.startswith(_NO_EXCLUSION)
    return term if is_exclusion else _term(item.whole)


def _words_only(item: _Item) -> Term | None:
    """Take as text what looks like a filter and is none; quotes around nothing are nothing."""
    term = _term(item.whole.removeprefix("-"), excluded=item.excluded)
    return term if term.tokens else None


def _term(raw: str, *, excluded: bool = False, starred: bool = False) -> Term:
    found = spans(raw)
    prefix = starred and bool(found) and found[-1][2] == len(raw)
    raw = f"{raw}*" if starred and not prefix else raw
    tokens = tuple(token for token, _, _ in found)
    inner = tuple(parts(raw)) if len(tokens) == 1 else ()
    return Term(tokens, prefix, excluded, raw, inner)


# ---------------------------------------------------------------------------------------- filters


def _filtered(filters: Filters, item: _Item, now: datetime) -> Filters | None:
    """Add what an item says to the filters; one that is no filter gives nothing."""
    value = f"{item.value}*" if item.starred else item.value
    if not item.field or not value.strip():
        return None
    if item.field == "title":
        return _titled(filters, item)
    if item.excluded:
        return None
    match item.field:
        case "since" | "until":
            moment = _moment(value, now, end=item.field == "until")
            return msgspec.structs.replace(filters, **{item.field: moment}) if moment else None
        case "role":
            role = value.casefold()
            return msgspec.structs.replace(filters, role=role) if role in get_args(Role) else None
        case _:
            return msgspec.structs.replace(filters, **{item.field: value})


def _titled(filters: Filters, item: _Item) -> Filters | None:
    if item.value in _NOTHING:
        return None
    term = _term(item.value, excluded=item.excluded, starred=item.starred)
    return msgspec.structs.replace(filters, title=(*filters.title, term))


def _moment(text: str, now: datetime, *, end: bool) -> datetime | None:
    """Read a time; of a day, a month or a year its begin or its end."""
    here = now if now.tzinfo is not None else now.replace(tzinfo=UTC)
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            return _before(here, int(ago[1]), ago[2])
        if (day := _DAY.fullmatch(text)) is not None:
            return _bound(day, here.tzinfo, end=end)
        if _TIME.fullmatch(text):
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=here.tzinfo)
    except (ValueError, OverflowError):  # no day of any calendar
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
    last_day = monthrange(year, month + 1)[1]  # a month before 31 March is the end of February
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


# ----------------------------------------------------------------------------------------- telling


def describe(query: Query) -> str:
    """Say in words how a query was understood."""
    filters = query.filters
    said = [_told(term) for term in query.terms]
    said += [f"title {_told(term)}" for term in filters.title]
    named = {
        "role": filters.role,
        "scope": filters.scope,
        "agent": filters.agent,
        "session": filters.session,
        "since": filters.since and filters.since.isoformat(timespec="minutes"),
        "before": filters.until and filters.until.isoformat(timespec="minutes"),
    }
    said += [f"{name} {value}" for name, value in named.items() if value is not None]
    return ", ".join(said) or "everything"


def _told(term: Term) -> str:
    words = " ".join(term.tokens) or term.raw
    return f'{"not " if term.excluded else ""}"{words}{"…" if term.prefix else ""}"'
