"""The result of a check: findings, and how much activity was checked."""

import enum
from collections import Counter
from collections.abc import Sequence

import msgspec


class ViolationKind(enum.StrEnum):
    """The kinds of violation."""

    LOST = "LOST"
    DUPLICATE = "DUPLICATE"
    REORDER = "REORDER"
    GAP = "GAP"
    INVENTED = "INVENTED"
    MUTATED = "MUTATED"
    TORN = "TORN"
    STALE_READ = "STALE READ"
    ZOMBIE_WRITE = "ZOMBIE WRITE"
    WRONG_MOVE = "WRONG MOVE"


class Finding(msgspec.Struct, frozen=True):
    """One violation: its kind, the session, a description, and the messages concerned."""

    kind: ViolationKind
    session: str
    detail: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.kind}: session {self.session!r}: {self.detail}"


class Coverage(msgspec.Struct, frozen=True):
    """How much activity a run recorded; a run without any proves nothing.

    `kills` counts killed workers that had invoked a write, `retries` the writes of an id that an
    earlier write may have stored, `duplicates` the acknowledgements that reported a retry,
    `overlaps` the writes that began while another worker was writing to the same session, `moves`
    the acknowledged moves and forks, `branches` the branches beyond the first of each session.
    """

    workers: int = 0
    sessions: int = 0
    writes: int = 0
    acked: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    retries: int = 0
    duplicates: int = 0
    overlaps: int = 0
    kills: int = 0
    takeovers: int = 0
    torn_lines: int = 0
    stored: int = 0
    moves: int = 0
    branches: int = 0


_REQUIRED_COUNTS = ("kills", "retries", "overlaps")
_MAX_SHOWN = 20


class Verdict(msgspec.Struct, frozen=True):
    """What `check` found, and how much activity it checked."""

    findings: tuple[Finding, ...]
    coverage: Coverage

    @property
    def ok(self) -> bool:
        """True if there are no findings; see `vacuous` for whether anything was tested."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[ViolationKind]:
        """The kinds of finding that occurred."""
        return frozenset(finding.kind for finding in self.findings)

    def vacuous(self, require: Sequence[str] = _REQUIRED_COUNTS) -> list[str]:
        """Return those of the named fields of `Coverage` that are zero."""
        unnamed = set(require).difference(Coverage.__struct_fields__)
        if unnamed:
            raise ValueError(f"coverage does not count {', '.join(sorted(unnamed))}")
        return [name for name in require if not getattr(self.coverage, name)]

    def require(self, happened: Sequence[str] = _REQUIRED_COUNTS) -> None:
        """Raise AssertionError for findings, and if one of the `happened` counts is zero."""
        idle = self.vacuous(happened)
        if idle:
            raise AssertionError(f"this run proves nothing: no {', no '.join(idle)}\n{self}")
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        """Return a short human-readable table."""
        counts = Counter(finding.kind for finding in self.findings)
        summary = "no findings" if self.ok else f"{len(self.findings)} findings"
        did = ", ".join(
            f"{name.replace('_', ' ')} {getattr(self.coverage, name)}"
            for name in Coverage.__struct_fields__
        )
        lines = [
            f"history check: {summary}",
            *(f"  {k:<13}{counts[k]:>8}" for k in ViolationKind),
            did,
        ]
        lines += [f"  {finding}" for finding in self.findings[:_MAX_SHOWN]]
        if len(self.findings) > _MAX_SHOWN:
            lines.append(f"  and {len(self.findings) - _MAX_SHOWN} more")
        return "\n".join(lines)
