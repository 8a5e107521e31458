"""Retention rules: which sessions to trash, which trashed ones to purge. Without a rule, none.

A session *matches* a rule if it is older than a limit, or idle for longer than one, or not among
the newest, or one of the oldest while all together are too large. It is *spared* all the same if it
is pinned, if a turn is open in it, if a session forked from it stays, or if it is among the newest
that are always kept. Sessions that match go to the trash; a trashed session is purged only by a
rule of its own, after a given time in the trash.

Sessions that were imported without trust, and not continued since, count as less recent than all
others: a file must not displace what is one's own.

Age is the time since a session was last written to. `older_than` also requires that it was created
that long ago, so that both rules together can express "created three months ago, idle for one";
with `older_than` alone a session must have been idle for as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from holdfast import validation
from holdfast.errors import BadQuery
from holdfast.values import RetentionAction, RetentionOptions

_DURATION: Final = re.compile(r"([0-9]{1,5})([hdwmy])")
_UNITS: Final = {
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "m": timedelta(days=30),
    "y": timedelta(days=365),
}
_AGE_UNITS: Final = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
)
_OVER_SIZE_LIMIT: Final = "the least recent, and all are too large"
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_duration(value: timedelta | str | None, field: str) -> int | None:
    """Return a duration (`timedelta`, or a text such as `30d`) in microseconds."""
    if value is None:
        return None
    found = value if isinstance(value, timedelta) else _parse_text(value)
    if found is None or found < timedelta(0):
        raise BadQuery(f"{field}: expected a time such as 12h, 30d, 8w, 6m or 1y")
    return found // _MICROSECOND


def _parse_text(text: object) -> timedelta | None:
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2]]


class RetentionRules(msgspec.Struct, frozen=True, kw_only=True):
    """Retention rules; durations in microseconds. Without a scope they apply to all scopes."""

    older_than: int | None = None
    idle: int | None = None
    keep_last: int | None = None
    scope: str | None = None
    max_bytes: int | None = None
    empty_trash: int | None = None


def parse_rules(options: RetentionOptions) -> RetentionRules:
    """Return validated rules; raise `BadQuery` if one is invalid."""
    validation.check_filter(options.get("scope"), "scope")
    return RetentionRules(
        older_than=parse_duration(options.get("older_than"), "older_than"),
        idle=parse_duration(options.get("idle"), "idle"),
        keep_last=_check_optional_number(options.get("keep_last"), "keep_last", lowest=1),
        scope=options.get("scope"),
        max_bytes=_check_optional_number(options.get("max_bytes"), "max_bytes", lowest=0),
        empty_trash=parse_duration(options.get("empty_trash"), "empty_trash"),
    )


def _check_optional_number(value: int | None, field: str, *, lowest: int) -> int | None:
    return None if value is None else validation.check_number(value, field, lowest=lowest)


class RetentionCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A session to judge; `blocked` is why it must stay whatever the rules, if it must.

    `own` is false for one that was imported and not continued since.
    """

    id: str
    parent: str | None
    scope: str | None
    created_at: int
    active_at: int
    activity: int
    trashed_at: int | None
    blocked: str | None
    bytes: int = 0
    own: bool = True


class RetentionVerdict(msgspec.Struct, frozen=True):
    """The decision on a session that matches a rule: an action (none if it is spared) and why."""

    id: str
    action: RetentionAction | None
    why: str


def decide(
    rules: RetentionRules, candidates: Sequence[RetentionCandidate], now: int
) -> list[RetentionVerdict]:
    """Return a verdict for each match: those to go first, each after the forks it depends on."""
    return [
        *_TrashSelection(rules, candidates, now).verdicts(),
        *_PurgeSelection(rules, candidates, now).verdicts(),
    ]


def remaining_bytes(
    candidates: Sequence[RetentionCandidate],
    verdicts: Sequence[RetentionVerdict],
    scope: str | None,
) -> int:
    """Return how many bytes of sessions stay outside the trash once the verdicts are applied."""
    to_trash = {verdict.id for verdict in verdicts if verdict.action == "trash"}
    return sum(c.bytes for c in _untrashed(candidates, scope) if c.id not in to_trash)


def _untrashed(
    candidates: Sequence[RetentionCandidate], scope: str | None
) -> Iterator[RetentionCandidate]:
    for one in candidates:
        if one.trashed_at is None and (scope is None or one.scope == scope):
            yield one


class _Selection:
    """Selects sessions one by one, each after all its forks."""

    action: RetentionAction

    def __init__(self, forks: dict[str, list[str]]) -> None:
        self.selected: dict[str, str] = {}
        self.spared: dict[str, str] = {}
        self._forks = forks

    def select(self, one: RetentionCandidate, why: str) -> bool:
        """Select a session unless there is a reason to keep it; return whether it was selected."""
        reason = one.blocked or self.reason_to_keep(one) or self._staying_forks(one)
        if reason is not None:
            self.spared[one.id] = reason
            return False
        self.spared.pop(one.id, None)
        self.selected[one.id] = why
        return True

    def select_all(self, matches: Sequence[tuple[RetentionCandidate, str]]) -> None:
        """Select these; a session that waits for its forks is selected right after the last one."""
        waiting = {one.id: (one, why) for one, why in matches}
        for first, _ in matches:
            id: str | None = first.id
            while id in waiting and self.select(*waiting[id]):
                id = waiting.pop(id)[0].parent

    def reason_to_keep(self, one: RetentionCandidate) -> str | None:  # noqa: ARG002
        """Return why a session must be kept, if there is a further reason."""
        return None

    def _staying_forks(self, one: RetentionCandidate) -> str | None:
        staying = [fork for fork in self._forks.get(one.id, ()) if fork not in self.selected]
        if not staying:
            return None
        more = f" and {len(staying) - 1} more" if len(staying) > 1 else ""
        return f"session {staying[0]}{more} was split off it"

    def verdicts(self) -> Iterator[RetentionVerdict]:
        """Yield the decisions: the selected sessions, then the spared ones."""
        for id, why in self.selected.items():
            yield RetentionVerdict(id, self.action, why)
        for id, why in self.spared.items():
            yield RetentionVerdict(id, None, why)


class _TrashSelection(_Selection):
    """The sessions to move to the trash."""

    action = "trash"

    def __init__(
        self, rules: RetentionRules, candidates: Sequence[RetentionCandidate], now: int
    ) -> None:
        super().__init__(_forks_by_parent(candidates, live=True))
        self._rules = rules
        self._now = now
        found = list(_untrashed(candidates, rules.scope))
        self._oldest_first = sorted(found, key=lambda one: (one.own, one.activity))
        newest = self._oldest_first[::-1][: rules.keep_last or 0]
        self._newest = {one.id for one in newest}
        self._by_age()
        self._by_size()

    def reason_to_keep(self, one: RetentionCandidate) -> str | None:
        """Return a reason if the session is among the newest, which are kept."""
        if one.id not in self._newest:
            return None
        last = self._rules.keep_last
        return "it is the most recent" if last == 1 else f"it is among the {last} most recent"

    def _by_age(self) -> None:
        self.select_all(
            [(one, why) for one in self._oldest_first if (why := self._matched_rule(one))]
        )

    def _matched_rule(self, one: RetentionCandidate) -> str | None:
        """Return the rule that a session matches, in words; `None` if it matches none."""
        rules = self._rules
        if rules.older_than is None and rules.idle is None:
            return self._surplus_reason(one)
        idle = self._now - one.active_at
        if idle < (rules.older_than or 0 if rules.idle is None else rules.idle):
            return None
        if rules.older_than is not None and self._now - one.created_at < rules.older_than:
            return None
        return f"idle for {age_in_words(idle)}"

    def _surplus_reason(self, one: RetentionCandidate) -> str | None:
        """Match all but the newest sessions if `keep_last` is the only rule."""
        last = self._rules.keep_last
        if last is None or self._rules.max_bytes is not None or one.id in self._newest:
            return None
        return "not the most recent" if last == 1 else f"not among the {last} most recent"

    def _by_size(self) -> None:
        limit = self._rules.max_bytes
        if limit is None:
            return
        remaining = [one for one in self._oldest_first if one.id not in self.selected]
        size = sum(one.bytes for one in remaining)
        passed: dict[str | None, RetentionCandidate] = {}
        for first in remaining:
            one: RetentionCandidate | None = first
            while one is not None and size > limit and self.select(one, _OVER_SIZE_LIMIT):
                size -= one.bytes
                one = passed.get(one.parent)  # The parent may have waited for this fork.
            passed[first.id] = first


class _PurgeSelection(_Selection):
    """The sessions in the trash to purge."""

    action = "purge"

    def __init__(
        self, rules: RetentionRules, candidates: Sequence[RetentionCandidate], now: int
    ) -> None:
        super().__init__(_forks_by_parent(candidates, live=False))
        if rules.empty_trash is None:
            return
        waiting = [
            (one, f"in the trash for {age_in_words(now - one.trashed_at)}")
            for one in sorted(candidates, key=lambda one: one.trashed_at or 0)
            if one.trashed_at is not None
            and now - one.trashed_at >= rules.empty_trash
            and (rules.scope is None or one.scope == rules.scope)
        ]
        self.select_all(waiting)


def _forks_by_parent(
    candidates: Sequence[RetentionCandidate], *, live: bool
) -> dict[str, list[str]]:
    """Return {parent: forks}; with `live`, only forks outside the trash."""
    found: dict[str, list[str]] = {}
    for one in candidates:
        if one.parent is not None and not (live and one.trashed_at is not None):
            found.setdefault(one.parent, []).append(one.id)
    return found


def age_in_words(micros: int) -> str:
    """Return a duration in words, in its largest unit, rounded down."""
    passed = timedelta(microseconds=max(0, micros))
    for name, unit in _AGE_UNITS:
        if passed >= unit:
            number = passed // unit
            return f"{number:,} {name}{'s' if number > 1 else ''}"
    return "less than a minute"
