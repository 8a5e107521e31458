"""The write half of the storage protocol as SQL statements. No decisions: values in, rows out.

A session's head row is locked when the session is first read, so that each writer has the session
to itself until the commit. Writes are sent and not waited for: an error of one shows at the next
read, or at the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.storage.ancestry import Path
from holdfast.storage.postgres import rows
from holdfast.storage.postgres.ancestry_cache import Paths
from holdfast.storage.postgres.head_cache import LONGEST, Standing, Standings
from holdfast.storage.postgres.rows import bind, branch_number, mark, split_branch
from holdfast.storage.postgres.snapshot import Answer, PostgresSnapshot, Statements, Tenant, is_hash
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.protocol import (
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
from holdfast.values import Usage

Trace = tuple[int, Sequence[MessageRow]]  # a branch, and the messages that were inserted there
_LAST: Final = (1 << 63) - 1
_HEARD: Final = 3  # of the statement that begins a write
_HEAVY: Final = 500_000  # bytes
_MOST_FORESEEN: Final = 5_000  # messages
_OF_NO_SESSION: Final = frozenset({"add_tenant", "add_blob", "note_erasure"})


class HeldByOthers(Exception):
    """A session is locked by another transaction, and this one must not wait."""


class PostgresTransaction(PostgresSnapshot):
    """Reads and writes. `writes` counts them: a refusal before the first one changed nothing."""

    def __init__(
        self,
        statements: Statements,
        tenant: Tenant,
        clock: Clock | None,
        paths: Paths,
        *,
        alone: bool = False,
        may_block: bool = True,
    ) -> None:
        """Write for this tenant; raise `SessionLocked` rather than wait, unless `may_block`."""
        super().__init__(statements, tenant, clock, paths)
        self.writes = 0
        self.number: str | None = None  # the transaction's id, once it holds a lock
        self.supposed: Standing | None = None  # the cached head, if it was used
        self.trace: Trace | None = None  # by which a lost commit is resolved
        self._alone = alone
        self._waits = may_block
        self._held: tuple[Sequence[int], Answer] | None = None
        self._missed: set[int] = set()
        self._lookup: tuple[list[tuple[int, str]], Answer] | None = None
        self._looked: dict[tuple[int, str], list[tuple[int, MessageRow]]] = {}
        self._found: dict[int, HeadRow] = {}
        self._left: dict[int, tuple[HeadRow, Answer]] = {}
        self._added: dict[int, tuple[MessageRow, ...]] = {}  # by branch
        self._new: set[int] = set()
        self._own: set[int] = set()  # including new sessions
        self._read: set[int] = set()  # those of them whose identity was read under the lock
        self._steps = 0
        self._erased = False

    def enter(self, name: str, *values: object) -> None:
        """Set the tenant; an exclusive transaction also waits here for all others to end."""
        super().enter(name, *values)
        if self._alone and self._entered is not None:
            self._told = self._entered.fetchone()
            self.number = None if self._told is None else self._told[-2]

    @property
    def heard(self) -> bool:
        """Whether a process listened for writes when this began; read after the commit."""
        row = self._entered.fetchone() if self._entered is not None else None
        return row is None or bool(row[_HEARD])

    def _keep_path(self, branch: int, path: Path) -> None:
        """Cache a path, except of a new branch: after a rollback its number is used again."""
        if branch not in self._new:
            super()._keep_path(branch, path)

    def note(self, cache: Standings) -> None:
        """Cache the heads that were written, after the commit; an erasure clears the cache."""
        if self._alone or self._erased:
            cache.clear()
            return
        for n, (head, answer) in self._left.items():
            row, before = answer.fetchone(), self._found.get(n)
            if row is not None and before is not None:
                after = msgspec.structs.replace(head, activity=row[0])
                added = self._added.get(head.branch, ())
                cache.note(before, after, added, self._began, self.supposed)

    # --------------------------------------------------------------------------- prefetching

    def foresee(self, *hints: Foresight) -> None:
        """Lock the sessions of these hints, and queue the reads behind the locks.

        Each statement sees what was committed before it, so a read behind a lock cannot be stale.
        """
        super().foresee(*hints)
        wanted = dict.fromkeys((hint.session, id) for hint in hints for id in hint.ids)
        if 0 < len(wanted) <= _MOST_FORESEEN:
            marks = [rows.place_mark(*message) for message in wanted]
            self._lookup = (list(wanted), self._ask("messages_by_id", marks))

    def _foresee_heads(self, sessions: Sequence[int]) -> None:
        if self._waits:
            self._foreseen.update((("head", n), self._ask("lock_head", n)) for n in sessions)
        else:
            self._held = (sessions, self._ask("try_lock_heads", rows.numbers(sessions)))
        self._foresee_starts(sessions)

    def _learn_held(self) -> None:
        """Receive which of the prefetched sessions are locked now."""
        if self._held is not None:
            (sessions, answer), self._held = self._held, None
            for row in answer.fetchall():
                self._note_held(row[2], row)
            self._missed.update(n for n in sessions if n not in self._heads)

    def _learn_looked(self) -> None:
        """Receive the messages that were looked up by their ids."""
        if self._lookup is not None:
            (wanted, answer), self._lookup = self._lookup, None
            self._looked.update((message, []) for message in wanted)
            for session, number, *values in answer.fetchall():
                row = rows.message_row(values)
                if (session, row.id) in self._looked:
                    self._looked[session, row.id].append((branch_number(session, number), row))

    def _by_ids(self, sessions: Sequence[int], ids: Sequence[str]) -> list[tuple[int, MessageRow]]:
        self._learn_looked()
        wanted = [(session, name) for session in sessions for name in set(ids)]
        if any(message not in self._looked for message in wanted):
            return super()._by_ids(sessions, ids)
        found = [item for message in wanted for item in self._looked[message]]
        return sorted(found, key=lambda item: (item[0], item[1].seq))

    def _forget_looked(self) -> None:
        """Drop prefetched messages: some are erased now."""
        self._lookup = None
        self._looked.clear()
        self._tails.clear()

    def _note_head(self, n: int, head: HeadRow | None) -> None:
        """Cache no head that was read without its lock."""

    def _identity(self, row: Sequence[Any]) -> SessionRow:
        """Read a session's identity; that of a locked session cannot change any more."""
        found = super()._identity(row)
        if found.n in self._own:
            self._read.add(found.n)
        return found

    def _foresee_turns(self, heads: Sequence[HeadRow]) -> None:
        """Prefetch no turn: it would be read before its session is locked."""

    def forks(self, ids: Sequence[str]) -> dict[str, int]:
        """Count the forks of these sessions."""
        self._forks.clear()
        return super().forks(ids)

    def _outdated(self, name: Look, *values: int) -> None:
        """Drop a prefetched result: the row is changed now."""
        self._foreseen.pop((name, *values), None)

    # -------------------------------------------------------------------------------- writing

    def _write(self, name: str, *values: object) -> None:
        self._refuse_others(name, values[0])
        self.writes += 1
        self._ask(name, *values)

    def _refuse_others(self, name: str, session: object) -> None:
        """Refuse to change a session that this transaction has not locked."""
        if not self._alone and name not in _OF_NO_SESSION and session not in self._own:
            raise _not_held(session)

    def _counted(self, name: str, *values: object) -> int:
        self._refuse_others(name, values[0])
        self.writes += 1
        row = self._first(name, *values)
        return row[0] if row else 0

    def activity_after(self, number: int, limit: int) -> list[tuple[int, str, int, int]]:
        """List sessions by activity, in order; each statement here sees the newest commits."""
        self._horizon = self._horizon_now()
        return super().activity_after(number, limit)

    # ---------------------------------------------------------------------------- sessions

    def _hold(self, n: int) -> HeadRow | None:
        """Lock a session's head; from now on no other transaction can write to the session."""
        self._learn_held()
        if n not in self._heads:
            row = None if n in self._missed else self._holding(n).fetchone()
            # Prefetched rows of a skipped session may be stale: its writer has not committed.
            if row is None and not self._waits and self._first("head", n) is not None:
                raise HeldByOthers
            self._note_held(n, row)
        return self._heads[n]

    def _holding(self, n: int) -> Answer:
        prefetched = self._foreseen.pop(("head", n), None)
        return prefetched or self._ask("lock_head" if self._waits else "try_lock_head", n)

    def _note_held(self, n: int, row: Sequence[Any] | None) -> None:
        if row is not None:
            self._check_format(row[0])
            self.number = row[1]
            self._own.add(n)
            self._found[n] = rows.head_row(row[2:])
        self._heads[n] = self._found.get(n)

    def head(self, n: int) -> HeadRow | None:
        """Read a session's head, and lock it."""
        return self._hold(n)

    def session(self, n: int) -> SessionRow | None:
        """Read a session's identity, and lock its head."""
        self._hold(n)
        self._read.add(n)
        return super().session(n)

    def add_session(self, row: SessionRow, start: Start) -> int:
        """Insert a new session with its first branch."""
        self._write("add_tenant", bind(self._whose.name))
        found = self._statements.ask("next_session").fetchone()
        assert found is not None  # noqa: S101 - a sequence returns a number
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
        # The lock taken for the first activity number covers those after it.
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
        """Insert a new branch."""
        n = branch_number(session, number)
        parent = (None, None) if start.parent is None else split_branch(start.parent)
        self._write(
            "add_branch", session, number, *parent, start.fork_seq, start.asked_seq, created_at,
            start.reason, bind(start.token), mark(start.token),
        )  # fmt: skip
        self._new.add(n)
        return n

    def end_branch(self, n: int, last_seq: int) -> None:
        """Store where a branch that is no longer active ends."""
        self._write("end_branch", *split_branch(n), last_seq)

    def cut_branch(self, n: int, last_seq: int) -> Cut:
        """Erase the messages of a branch after `last_seq`, where it ends from now on."""
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
        """Insert messages at their positions."""
        position = split_branch(branch)
        session = position[0]
        self._outdated("summary", session)
        self._tails.pop(session, None)
        self._added[branch] = (*self._added.get(branch, ()), *rows_)[-LONGEST:]
        self._learn_looked()
        for row in rows_:
            if (session, row.id) in self._looked:
                self._looked[session, row.id].append((branch, row))
        if len(rows_) == 1:
            self._write("add_message", *position, *rows.message_values(session, rows_[0]))
            return
        unrolled = f"add_messages_{len(rows_)}"
        if unrolled in SQL and sum(len(row.body) for row in rows_) < _HEAVY:
            values = (rows.message_values(session, row) for row in rows_)
            self._write(unrolled, *position, *chain.from_iterable(values))
            return
        for some in rows.by_weight(rows_, _HEAVY):
            self._write("add_messages", *position, *rows.message_columns(session, some))
            if len(some) != len(rows_):
                self._statements.sync()  # Each part has a timeout of its own.

    def put_tombstone(self, branch: int, row: MessageRow) -> frozenset[str]:
        """Replace a stored message; return the blobs it needed."""
        self._forget_looked()
        blobs = self._unuse(branch, row.seq, row.seq)
        self._note_erasure()
        self._write(
            "put_message", *split_branch(branch), row.seq, row.crc, rows.is_summary(row), row.body
        )
        return blobs

    def add_blob(self, branch: int, seq: int, sha256: str, data: bytes) -> None:
        """Insert a blob unless it is stored, and note that this message needs it."""
        self._write("add_blob", sha256, data)
        self._write("use_blob", *split_branch(branch), seq, sha256)

    def refer_blob(self, branch: int, seq: int, sha256: str) -> bool:
        """Note that a message needs a stored blob; false if it is not stored."""
        if not is_hash(sha256) or self._first("find_blob", sha256) is None:
            return False
        self._write("use_blob", *split_branch(branch), seq, sha256)
        return True

    def drop_blobs(self, blobs: Collection[str]) -> tuple[int, int]:
        """Erase those of these blobs that no message needs; return their number and bytes."""
        if not blobs:
            return 0, 0
        self.writes += 1
        sizes = [row[0] for row in self._all("drop_unused_blobs", sorted(blobs))]
        return len(sizes), sum(sizes)

    def drop_belongings(self, session: int) -> Belongings:
        """Erase a session's head, turns, ledger, drafts, queue and usage."""
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
        """Insert or replace a turn."""
        self._outdated("turn", row.session, row.number)
        self._write("put_turn", *rows.turn_values(row))

    def put_tool(self, row: ToolRow) -> None:
        """Insert or replace a line of the ledger; a new one goes to its end."""
        self._outdated("tools", row.session, row.turn)
        self._write(
            "put_tool", row.session, row.turn, mark(row.call_id), bind(row.call_id),
            bind(row.name), row.outcome, row.started_at, row.ended_at,
        )  # fmt: skip

    def put_draft(self, session: int, turn: int, number: int, record: bytes) -> None:
        """Insert or replace one record of a draft."""
        self._outdated("opening", session, turn)
        self._outdated("draft", session, turn)
        self._write("put_draft", session, turn, number, record)

    def drop_draft(self, session: int, turn: int) -> None:
        """Remove a draft that became a message."""
        self._outdated("opening", session, turn)
        self._outdated("draft", session, turn)
        self._write("drop_draft", session, turn)

    def add_queued(self, session: int, row: QueueRow) -> None:
        """Append input to the queue."""
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
        f"a write to session number {session} was refused, because the session was not locked when "
        "it was read; nothing was stored. This is a bug in Holdfast: please report it."
    )
