"""Judging what a damaged store said of itself, by what the same store said before the damage.

Every read is *exact*, or *refused* by an error of the store, or *shown* as damaged where it is, or
*noted*: `store.damage` names it (its session, or one that shares history with it, or the whole
store). Counts, ledgers and searches that differ, of which only `verify` or `doctor` know, are
*reported*. Everything else is *silent*, which is what must not be. No message and no blob may be
shown as whole with other content, whatever is said elsewhere.

What was appended afterwards must be there, at a head that was never given before; a session that
`verify` named takes no append, and a file whose pages SQLite's own check complains of takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast import errors
from tests.crash._damage_reads import acknowledged
from tests.crash._damage_worlds import TENANTS

REFUSALS = {
    name
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, errors.StorageError)
}
_MESSAGES = {"messages", "newest", "users", "newest replies", "follow", "branch"}
_DERIVED = {"search", "metadata", "info", "children", "turns", "usage", "stats", "activity"}


@dataclass
class Verdict:
    """How often each answer was given, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    only_reported: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """Yield what is wrong: each kind with how often it was seen, and the first of it."""
        for label, details in self.wrong.items():
            yield f"{label} ({len(details)}): {details[0][:300]}"

    @property
    def reported(self) -> bool:
        """Whether `verify`, `doctor` or a read said that anything is damaged, or refused."""
        return bool(self.reports) or any(
            self.counts[answer] for answer in ("refused", "shown", "noted")
        )


@dataclass(frozen=True)
class Condition:
    """What the damaged files are, by SQLite's own check and by the format of the log.

    `sound` is whether SQLite finds nothing wrong with the pages, `hopeless` whether there are too
    few of them to salvage anything, `broken` whether a log written at `power` has a bad frame with
    two or more whole commits directly behind it, `mixed` whether main file and log were not taken
    from the same place: which of them is wanted nobody can know, so salvage may refuse both.
    """

    sound: bool = True
    hopeless: bool = False
    broken: bool = False
    mixed: bool = False


class Judge:
    """Compares an examination with that of the undamaged store."""

    def __init__(self, facts: dict[str, Any], expected: dict[str, Any]) -> None:
        self._facts = facts
        self._expected = expected
        self._family = _families(facts)

    def judge(self, found: dict[str, Any], files: Condition) -> Verdict:
        """Return the verdict."""
        self.verdict = Verdict()
        self._reports = list(self._reported(found))
        self.verdict.reports = [report["what"] for report in self._reports]
        for phase in ("readonly", "writable"):
            self._phase(phase, found[phase], self._expected[phase], [])
        self._verify_knows(found)
        self._doctor(found)
        self._salvage(found["salvaged"], self._expected["salvaged"], files)
        self._appends(found, files)
        return self.verdict

    def _fail(self, label: str, detail: object = "") -> None:
        self.verdict.counts["wrong"] += 1
        self.verdict.wrong.setdefault(label, []).append(str(detail)[:600])

    # ------------------------------------------------------------------------------- the reads

    def _phase(
        self,
        phase: str,
        found: dict[str, Any],
        expected: dict[str, Any],
        told: list[dict[str, Any]],
    ) -> None:
        for tenant in TENANTS:
            got, base = found[tenant], expected[tenant]
            if "crash" in got:
                self._fail(f"crash at {phase}", got["crash"][-500:])
            elif "error" in got:
                if got["error"] in REFUSALS or base.get("error") == got["error"]:
                    self.verdict.counts["refused"] += 1
                else:
                    self._fail(f"silent at {phase}", got)
            elif "error" in base:
                self._fail(f"silent at {phase}", "there was no store before")
            else:
                self._view(phase, got["value"], base["value"], told)

    def _view(
        self, phase: str, got: dict[str, Any], base: dict[str, Any], told: list[dict[str, Any]]
    ) -> None:
        marks = [*got["damage"], *told]
        for name, wanted in base["view"].items():
            session, _, read = name.partition(" ")
            session = session if session in self._family else ""
            item = got["view"].get(name) or got["view"].get(f"{session} get") or {}
            kind = read.rstrip(" 0123456789") if session else name.split()[0]
            answer = self._answer(kind, item, wanted)
            if answer == "different" and self._names(marks, session):
                answer = "noted"
            elif answer == "different" and self._names(self._reports, session):
                answer = "reported" if _derived(kind, item, wanted) else "silent"
            if answer in {"exact", "refused", "shown", "noted", "reported"}:
                self.verdict.counts[answer] += 1
                self.verdict.only_reported.update([f"{phase} {kind}"] * (answer == "reported"))
            else:
                answer = "silent" if answer == "different" else answer
                self._fail(f"{answer} at {phase}", f"{name}: {_difference(item, wanted)}")
        for name in ("verify", "index"):
            if "crash" in got.get(name, {}):
                self._fail(f"crash at {phase}", f"{name}: {got[name]['crash'][-500:]}")

    def _answer(self, kind: str, item: dict[str, Any], wanted: dict[str, Any]) -> str:
        """Return what a read gave, by itself."""
        if item == wanted:
            return "exact"
        if "crash" in item:
            return "crash"
        if item.get("error") in REFUSALS:
            return "refused"
        if _other_content(kind, item, wanted):
            return "other content"
        return "shown" if self._shown(kind, item, wanted) else "different"

    def _names(self, damage: list[dict[str, Any]], session: str) -> bool:
        """True if damage is of this session or its family, or of no session in particular."""
        family = self._family.get(session, "")
        return any(
            not session or not one["session_id"] or self._family.get(one["session_id"]) == family
            for one in damage
        )

    @staticmethod
    def _shown(kind: str, item: dict[str, Any], wanted: dict[str, Any]) -> bool:
        """True if what differs is shown as damaged, where it is."""
        got, base = item.get("value"), wanted.get("value")
        if not isinstance(got, list) or not isinstance(base, list):
            return False
        if kind in _MESSAGES:
            return len(got) == len(base) and all(
                one == other or (one["status"] == "damaged" and one["seq"] == other["seq"])
                for one, other in zip(got, base, strict=True)
            )
        if kind == "list":
            intact = [one for one in got if one["state"] != "damaged"]
            missing = [one for one in base if one not in intact]
            return all(one in base for one in intact) and len(got) - len(intact) >= len(missing)
        return False

    # ------------------------------------------------------------------------------ the reports

    def _reported(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for phase in ("readonly", "writable"):
            for tenant in TENANTS:
                yield from found[phase][tenant].get("value", {}).get("verify", {}).get("value", ())
        report = found["doctor"].get("value", {}).get("report", {})
        yield from report.get("damage", ())
        before = self._expected["doctor"].get("value", {}).get("report", {})
        usual = {check["name"] for check in before.get("checks", ()) if not check.get("ok", True)}
        for check in report.get("checks", ()):
            ignored = check["name"] == "write-ahead log"  # Shown only if something is not read.
            wrong = not check.get("ok", True) and check["name"] not in usual | {"search index"}
            if ignored or wrong:
                yield {"what": f"doctor: {check}", "session_id": None}

    def _verify_knows(self, found: dict[str, Any]) -> None:
        """What a read calls damaged, `verify` calls damaged, unless an append has mended it."""
        for phase in ("readonly", "writable") if self._facts["verify first"] else ("readonly",):
            got = found[phase][TENANTS[0]].get("value")
            if got is None or got["verify"].get("value") != []:
                continue
            raised = [name for name, item in got["view"].items() if item.get("error") == "Damaged"]
            if raised or got["damage"]:
                self._fail(f"verify is clean at {phase}", [*raised[:4], *got["damage"][:4]])

    def _doctor(self, found: dict[str, Any]) -> None:
        doctor = found["doctor"]
        if "crash" in doctor:
            self._fail("crash: doctor", doctor["crash"][-500:])
            return
        report = doctor["value"]["report"]
        verified = found["readonly"][TENANTS[0]].get("value", {}).get("verify", {}).get("value")
        if verified and report["ok"]:
            self._fail("doctor is content", verified[:3])

    # ------------------------------------------------------------------------------- the salvage

    def _salvage(self, found: dict[str, Any], expected: dict[str, Any], files: Condition) -> None:
        report = found["report"]
        if "crash" in report:
            self._fail("crash: salvage", report["crash"][-500:])
        if "crash" in report.get("doctor", {}):
            self._fail("crash: doctor --fix", report["doctor"]["crash"][-500:])
        if "read" not in found:
            refused = files.mixed and report.get("error") == "Damaged"
            if "read" in expected and not files.hopeless and not refused:
                self._fail("salvage gave up", report.get("text", report))
            return
        if "read" not in expected:
            return
        told = report.get("value", {}).get("damage", [])
        if "value" not in report:  # `doctor --fix` says only that it was damaged.
            told = [{"what": "doctor --fix", "session_id": None}]
        self._phase("salvaged", found["read"], expected["read"], told)
        verified = found["read"][TENANTS[0]].get("value", {}).get("verify")
        if verified is not None and verified.get("value") != []:
            self._fail("a salvaged store is damaged", verified)

    # ------------------------------------------------------------------------------- the appends

    def _appends(self, found: dict[str, Any], files: Condition) -> None:
        writable = found["writable"][TENANTS[0]].get("value")
        before = self._expected["writable"][TENANTS[0]].get("value")
        if "crash" in found["reopened"]:
            self._fail("crash at reopening", found["reopened"]["crash"][-500:])
        if writable is None or before is None:
            return
        verified = writable["verify"].get("value", [])
        again = found["reopened"].get("value", {}).get("newest", {})
        for fact in self._facts["sessions"]:
            item = writable["appends"].get(fact["id"], {})
            if "crash" in item:
                self._fail("crash at append", item["crash"][-500:])
            if "value" not in item:
                self.verdict.counts["append refused"] += "error" in item
                continue
            self.verdict.counts["appended"] += 1
            self._kept(fact, item["value"]["seen"], again.get(fact["id"], {}))
            self._head(fact, item["value"]["head"], before)
            if files.broken:
                self._fail("a log that is damaged inside takes an append", fact["key"])
            if self._facts["verify first"]:
                self._permitted(fact, verified, files)

    def _kept(self, fact: dict[str, Any], seen: dict[str, Any], again: dict[str, Any]) -> None:
        """What was acknowledged is there, at once and in a store that is opened again."""
        stored = acknowledged(fact)
        if seen.get("value") != stored:
            self._fail("an append cannot be read", f"{fact['key']}: {stored}, then {seen}")
        elif again and again.get("error") not in REFUSALS and again.get("value") != stored:
            self._fail("an append is lost", f"{fact['key']}: {stored}, then {again}")

    def _permitted(
        self, fact: dict[str, Any], verified: list[dict[str, Any]], files: Condition
    ) -> None:
        """What is known to be damaged is not written to, unless it is a blob."""
        rows = [one for one in verified if one["blocking"] or "blob" not in one["what"]]
        if any(one["session_id"] == fact["id"] for one in rows):
            self._fail("a session that verify named takes an append", fact["key"])
        if verified and not files.sound:
            self._fail("a file with damaged pages takes an append", verified[:2])

    def _head(self, fact: dict[str, Any], head: dict[str, int], before: dict[str, Any]) -> None:
        """A head is never given twice; who is told that the log was ignored knows that it may."""
        was = before["view"].get(f"{fact['id']} head", {}).get("value")
        if was is None or self._names(self._reports, fact["id"]):
            return
        if head != {"branch": was["branch"], "seq": was["seq"] + 1}:
            self._fail("a head is given twice", f"{fact['key']}: {was}, then {head}")


def _families(facts: dict[str, Any]) -> dict[str, str]:
    """Return for each session the oldest ancestor it is known to have."""
    parents = {fact["id"]: fact["parent"] for fact in facts["sessions"]}

    def root(session: str) -> str:
        while parents.get(session):
            session = parents[session]
        return session

    return {session: root(session) for session in parents}


def _derived(kind: str, item: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """True for what is found by an index: counts and ledgers, searches, lists of all sessions."""
    if kind == "list":
        lists = (item.get("value", ()), wanted.get("value", ()))
        shown, there = ([str(one["id"]) for one in value] for value in lists)
        return shown == there
    return kind in _DERIVED


def _other_content(kind: str, item: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """True if a message or a blob is said to be whole and is not what was stored."""
    if kind == "blob":
        return "value" in item
    if kind not in _MESSAGES:
        return False
    stored = {one["id"]: one for one in wanted.get("value", ())}
    return any(
        one["status"] != "damaged" and one["said"] != stored.get(one["id"], one)["said"]
        for one in item.get("value", ())
    )


def _difference(item: dict[str, Any], wanted: dict[str, Any]) -> str:
    got, base = item.get("value"), wanted.get("value")
    if isinstance(got, list) and isinstance(base, list):
        lost = [one for one in base if one not in got]
        new = [one for one in got if one not in base]
        return f"{len(base)} then {len(got)} items; lost {lost[:2]}; new {new[:2]}"
    if "crash" in item:
        return str(item["crash"])[-500:]
    return f"{str(wanted)[:200]}, then {str(item)[:200]}"
