"""The seam's writes as SQL statements. No decisions: values in, rows out.

A session's head row is locked when the session is first looked at, so that whoever writes to it is
alone with it until the commit. Writes are sent and not waited for: what goes wrong with one shows
at the next question, or at the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from holdfast.backends.base import (
    Belongings,
    Cut,
    Foresight,
    HeadRow,
    Look,
    MessageRow,
    QueueRow,
    SessionRow,
    Start,
    ToolRow,
    TurnRow,
    UsageRow,
)
from holdfast.backends.postgres import rows
from holdfast.backends.postgres.paths import Paths
from holdfast.backends.postgres.rows import bind, branch_number, mark, split_branch
from holdfast.backends.postgres.snapshot import (
    Answer,
    PostgresSnapshot,
    Statements,
    Tenant,
    is_hash,
)
from holdfast.backends.postgres.standing import LONGEST, Standing, Standings
from holdfast.backends.postgres.statements import SQL
from holdfast.clock import Clock
from holdfast.core.branches import Path
from holdfast.errors import StorageError
from holdfast.records import Usage

Trace = tuple[int, Sequence[MessageRow]]  # a branch, and what was to be stored there
_LAST: Final = (1 << 63) - 1
_HEARD: Final = 3  # the column of what entering tells
_HEAVY: Final = 500_000  # bytes
_MOST_FORESEEN: Final = 5_000  # messages
_OF_NO_SESSION: Final = frozenset({"add_tenant", "add_blob", "note_erasure"})


class HeldByOthers(Exception):
    """Somebody else writes to a session, and this transaction must not wait."""


class PostgresTransaction(PostgresSnapshot):
    """Writes, too. `writes` counts them, so that a refusal can be told from a failure."""

    def __init__(
        self,
        statements: Statements,
        tenant: Tenant,
        clock: Clock | None,
        paths: Paths,
        *,
        alone: bool = False,
        waits: bool = True,
    ) -> None:
        """Write for this tenant; one that does not wait raises `HeldByOthers` instead."""
        super().__init__(statements, tenant, clock, paths)
        self.writes = 0
        self.number: str | None = None  # what the server calls it, once it has written
        self.supposed: Standing | None = None  # where the session was, if nobody looked
        self.trace: Trace | None = None  # messages that are there if this was stored
        self._alone = alone
        self._waits = waits
        self._held: tuple[Sequence[int], Answer] | None = None
        self._missed: set[int] = set()
        self._lookup: tuple[list[tuple[int, str]], Answer] | None = None
        self._looked: dict[tuple[int, str], list[tuple[int, MessageRow]]] = {}
        self._found: dict[int, HeadRow] = {}
        self._left: dict[int, tuple[HeadRow, Answer]] = {}
        self._added: dict[int, tuple[MessageRow, ...]] = {}  # the last ones, by their branch
        self._new: set[int] = set()
        self._own: set[int] = set()  # the sessions that are held, or new
        self._read: set[int] = set()  # those of them whose identity was read since
        self._steps = 0
        self._erased = False

    def enter(self, name: str, *values: object) -> None:
        """Return whose transaction this is; one that is alone has waited for others when it has."""
        super().enter(name, *values)
        if self._alone and self._entered is not None:
            self._told = self._entered.fetchone()
            self.number = None if self._told is None else self._told[-2]

    @property
    def heard(self) -> bool:
        """Whether anybody listened for writes when this began; it is asked when it is over."""
        row = self._entered.fetchone() if self._entered is not None else None
        return row is None or bool(row[_HEARD])

    def _keep_path(self, branch: int, path: Path) -> None:
        """Keep a path, but not of a branch whose number is given anew after a rollback."""
        if branch not in self._new:
            super()._keep_path(branch, path)

    def note(self, standings: Standings) -> None:
        """How the sessions were left, once all is committed; what was erased is forgotten."""
        if self._alone or self._erased:
            standings.clear()
            return
        for n, (left, answer) in self._left.items():
            row, found = answer.fetchone(), self._found.get(n)
            if row is not None and found is not None:
                now = msgspec.structs.replace(left, activity=row[0])
                added = self._added.get(left.branch, ())
                standings.note(found, now, added, self._began, self.supposed)

    # --------------------------------------------------------------------------- foreseeing

    def foresee(self, *sights: Foresight) -> None:
        """Hold sessions and ask for what verbs will look at, for all of them in one go.

        Each statement sees what was committed before it, so what is asked behind the one that
        holds a session is what whoever holds it finds.
        """
        super().foresee(*sights)
        places = dict.fromkeys((sight.session, id) for sight in sights for id in sight.ids)
        if 0 < len(places) <= _MOST_FORESEEN:
            marks = [rows.place_mark(*place) for place in places]
            self._lookup = (list(places), self._ask("messages_by_id", marks))

    def _foresee_heads(self, sessions: Sequence[int]) -> None:
        if self._waits:
            self._foreseen.update((("head", n), self._ask("lock_head", n)) for n in sessions)
        else:
            self._held = (sessions, self._ask("try_lock_heads", rows.numbers(sessions)))
        self._foresee_starts(sessions)

    def _learn_held(self) -> None:
        """Take in which of the sessions that were foreseen are held."""
        if self._held is not None:
            (sessions, answer), self._held = self._held, None
            for row in answer.fetchall():
                self._note_held(row[2], row)
            self._missed.update(n for n in sessions if n not in self._heads)

    def _learn_looked(self) -> None:
        """Take in which of the messages that were foreseen are there."""
        if self._lookup is not None:
            (places, answer), self._lookup = self._lookup, None
            self._looked.update((place, []) for place in places)
            for session, number, *values in answer.fetchall():
                row = rows.message_row(values)
                if (session, row.id) in self._looked:
                    self._looked[session, row.id].append((branch_number(session, number), row))

    def _by_ids(self, sessions: Sequence[int], ids: Sequence[str]) -> list[tuple[int, MessageRow]]:
        self._learn_looked()
        places = [(session, name) for session in sessions for name in set(ids)]
        if any(place not in self._looked for place in places):
            return super()._by_ids(sessions, ids)
        found = [item for place in places for item in self._looked[place]]
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def _forget_looked(self) -> None:
        """Look again: messages are erased."""
        self._lookup = None
        self._looked.clear()
        self._tails.clear()

    def _note_head(self, n: int, head: HeadRow | None) -> None:
        """Keep no head that was read without being held."""

    def _identity(self, row: Sequence[Any]) -> SessionRow:
        """Read a session's identity; one that is held stays what it is."""
        found = super()._identity(row)
        if found.n in self._own:
            self._read.add(found.n)
        return found

    def _foresee_turns(self, heads: Sequence[HeadRow]) -> None:
        """Keep no turn that was read before its session was held."""

    def forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the sessions that were split off these."""
        self._forks.clear()
        return super().forks(ids)

    def _outdated(self, look: Look, *values: int) -> None:
        """Forget what was foreseen: it is changed now."""
        self._foreseen.pop((look, *values), None)

    # -------------------------------------------------------------------------------- writing

    def _write(self, name: str, *values: object) -> None:
        self._refuse_others(name, values[0])
        self.writes += 1
        self._ask(name, *values)

    def _refuse_others(self, name: str, session: object) -> None:
        """Refuse to change a session that others may write to meanwhile."""
        if not self._alone and name not in _OF_NO_SESSION and session not in self._own:
            raise _not_held(session)

    def _counted(self, name: str, *values: object) -> int:
        self._refuse_others(name, values[0])
        self.writes += 1
        row = self._first(name, *values)
        return row[0] if row else 0

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List what was written to, in order; here every statement sees what is newest."""
        self._horizon = self._horizon_now()
        return super().activity_after(number, limit)

    # ---------------------------------------------------------------------------- sessions

    def _hold(self, n: int) -> HeadRow | None:
        """Lock a session's head; from now on nobody else changes anything of this session."""
        self._learn_held()
        if n not in self._heads:
            row = None if n in self._missed else self._holding(n).fetchone()
            # What was foreseen of one that was missed was read while others wrote to it.
            if row is None and not self._waits and self._first("head", n) is not None:
                raise HeldByOthers
            self._note_held(n, row)
        return self._heads[n]

    def _holding(self, n: int) -> Answer:
        asked = self._foreseen.pop(("head", n), None)
        return asked or self._ask("lock_head" if self._waits else "try_lock_head", n)

    def _note_held(self, n: int, row: Sequence[Any] | None) -> None:
        if row is not None:
            self._check_format(row[0])
            self.number = row[1]
            self._own.add(n)
            self._found[n] = rows.head_row(row[2:])
        self._heads[n] = self._found.get(n)

    def head(self, n: int) -> HeadRow | None:
        """Read where a session stands, and hold it."""
        return self._hold(n)

    def session(self, n: int) -> SessionRow | None:
        """Read a session's identity, and hold it."""
        self._hold(n)
        self._read.add(n)
        return super().session(n)

    def add_session(self, row: SessionRow, start: Start) -> int:
        """Store a new session with its first branch."""
        self._write("add_tenant", bind(self._whose.name))
        found = self._statements.ask("next_session").fetchone()
        assert found is not None  # noqa: S101 - a sequence gives a number
        self._check_format(found[0])
        self.number = found[1]
        n: int = found[2]
        self._own.add(n)
        self._read.add(n)
        self._write("add_session", n, *rows.session_values(row))
        if row.purged_at is None:
            branch, at = self.add_branch(n, 1, start, row.created_at), row.created_at
            head = HeadRow(n, branch, 1, start.fork_seq, 0, None, at, 0, Usage(), 0, None, 0, 0, 0)
            self._put_head("add_head", head)
        return n

    def put_session(self, row: SessionRow) -> None:
        """Replace a session's identity."""
        if not self._alone and row.n not in self._read:
            raise _not_held(row.n)
        self._outdated("session", row.n)
        self._write("put_session", row.n, *rows.session_values(row))

    def drop_session(self, n: int) -> None:
        """Erase a session's identity."""
        self._outdated("session", n)
        self._write("drop_session", n)

    def put_head(self, row: HeadRow) -> None:
        """Replace a session's head; its activity becomes the highest of all."""
        self._put_head("put_head", row)

    def _put_head(self, name: str, row: HeadRow) -> None:
        self._steps += 1
        # The lock of the first number holds for those behind it.
        lock = None if self._alone or self._steps > 1 else self._whose.activity_lock
        self._refuse_others(name, row.session)
        self.writes += 1
        answer = self._ask(name, row.session, *rows.head_values(row), lock)
        self._note_left(row, answer)

    def _note_left(self, row: HeadRow, answer: Answer) -> None:
        self._heads[row.session] = row
        self._left[row.session] = row, answer

    # ---------------------------------------------------------------------------- branches

    def add_branch(self, session: int, number: int, start: Start, created_at: int) -> int:
        """Store a new branch."""
        n = branch_number(session, number)
        parent = (None, None) if start.parent is None else split_branch(start.parent)
        self._write(
            "add_branch", session, number, *parent, start.fork_seq, start.asked_seq, created_at,
            start.reason, bind(start.token), mark(start.token),
        )  # fmt: skip
        self._new.add(n)
        return n

    def end_branch(self, n: int, last_seq: int) -> None:
        """Note where a branch that is left ends."""
        self._write("end_branch", *split_branch(n), last_seq)

    def cut_branch(self, n: int, last_seq: int) -> Cut:
        """Erase the messages of a branch behind `last_seq`, where it ends from now on."""
        self._forget_looked()
        blobs = self._unuse(n, last_seq + 1, _LAST)
        erased = self._counted("drop_messages", *split_branch(n), last_seq + 1)
        if erased:
            self._note_erasure()
        self.end_branch(n, last_seq)
        return Cut(erased, blobs)

    def _unuse(self, n: int, first: int, last: int) -> frozenset[str]:
        self.writes += 1
        found = self._all("drop_blob_uses", *split_branch(n), first, last)
        return frozenset(row[0] for row in found)

    def _note_erasure(self) -> None:
        """Count a transaction that erases messages, once."""
        if not self._erased:
            self._write("note_erasure", bind(self._whose.name))
            self._erased = True

    def drop_branch(self, n: int) -> None:
        """Erase a branch without messages."""
        self._write("drop_branch", *split_branch(n))

    # ---------------------------------------------------------------------------- messages

    def add_messages(self, branch: int, rows_: Sequence[MessageRow]) -> None:
        """Store messages at their places."""
        place = split_branch(branch)
        self._outdated("summary", place[0])
        self._tails.pop(place[0], None)
        self._added[branch] = (*self._added.get(branch, ()), *rows_)[-LONGEST:]
        self._learn_looked()
        for row in rows_:
            if (place[0], row.id) in self._looked:
                self._looked[place[0], row.id].append((branch, row))
        if len(rows_) == 1:
            self._write("add_message", *place, *rows.message_values(place[0], rows_[0]))
            return
        several = f"add_messages_{len(rows_)}"
        if several in SQL and sum(len(row.body) for row in rows_) < _HEAVY:
            values = (rows.message_values(place[0], row) for row in rows_)
            self._write(several, *place, *chain.from_iterable(values))
            return
        for some in rows.by_weight(rows_, _HEAVY):
            self._write("add_messages", *place, *rows.message_columns(place[0], some))
            if len(some) != len(rows_):
                self._statements.sync()  # Each part has as much time as all of a small one.

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message; give the blobs it needed."""
        self._forget_looked()
        blobs = self._unuse(branch, row.seq, row.seq)
        self._note_erasure()
        self._write(
            "put_message", *split_branch(branch), row.seq, row.crc, rows.is_summary(row), row.body
        )
        return blobs

    def add_blob(self, branch: int, seq: int, sha256: str, data: bytes) -> None:
        """Store a blob once, and that this message needs it."""
        self._write("add_blob", sha256, data)
        self._write("use_blob", *split_branch(branch), seq, sha256)

    def refer_blob(self, branch: int, seq: int, sha256: str) -> bool:
        """Note that a message needs a stored blob."""
        if not is_hash(sha256) or self._first("find_blob", sha256) is None:
            return False
        self._write("use_blob", *split_branch(branch), seq, sha256)
        return True

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that no message needs."""
        if not blobs:
            return 0, 0
        self.writes += 1
        sizes = [row[0] for row in self._all("drop_unused_blobs", sorted(blobs))]
        return len(sizes), sum(sizes)

    def drop_belongings(self, session: int) -> Belongings:
        """Erase what a session has."""
        for name in ("drop_head", "drop_tools", "drop_usage", "drop_queue_blobs"):
            self._write(name, session)
        self._heads[session] = None
        names = ("drop_turns", "drop_drafts", "drop_queue")
        return Belongings(*(self._counted(name, session) for name in names))

    # ------------------------------------------------------------ usage, turns, drafts, queue

    def add_usage(self, session: int, row: UsageRow) -> None:
        """Add to a session's usage by day and model."""
        self._outdated("usage", session)
        self._write(
            "add_usage", session, row.day, rows.model_mark(row.model), bind(row.model),
            *msgspec.structs.astuple(row.usage), row.cost, row.measured.counted,
            row.measured.estimated,
        )  # fmt: skip

    def put_turn(self, row: TurnRow) -> None:
        """Store or replace a turn."""
        self._outdated("turn", row.session, row.number)
        self._write("put_turn", *rows.turn_values(row))

    def put_tool(self, row: ToolRow) -> None:
        """Store or replace a line of the ledger; a new one goes to its end."""
        self._outdated("tools", row.session, row.turn)
        self._write(
            "put_tool", row.session, row.turn, mark(row.call_id), bind(row.call_id),
            bind(row.name), row.outcome, row.started_at, row.ended_at,
        )  # fmt: skip

    def put_draft(self, session: int, turn: int, number: int, record: bytes) -> None:
        """Store or replace one record of a draft."""
        self._outdated("opening", session, turn)
        self._outdated("draft", session, turn)
        self._write("put_draft", session, turn, number, record)

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        self._outdated("opening", session, turn)
        self._outdated("draft", session, turn)
        self._write("drop_draft", session, turn)

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Put input at the end of the queue."""
        last = self._first("last_queued", session)
        number = (last[0] if last else 0) + 1
        self._write("add_queued", session, number, bind(row.id), row.created_at, row.body)
        for position, (sha256, data) in enumerate(dict(row.blobs).items()):
            self._write("add_queue_blob", session, number, position, sha256, data)

    def drop_queued(self, session: int, number: int) -> None:
        """Remove input that became a message."""
        self._write("drop_queued", session, number)
        self._write("drop_queued_blobs", session, number)


def _not_held(session: object) -> StorageError:
    return StorageError(
        f"a write to session number {session} was refused, because the session was not held when "
        "it was read; nothing was stored. This is a mistake in Holdfast: please report it."
    )
