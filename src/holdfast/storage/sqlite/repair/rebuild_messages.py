"""Rebuilding the messages of every branch, with placeholders for those that are lost.

Messages are compared with their branches (see `check_history.walk`). The bytes of an unreadable
message go into `quarantine`, and a placeholder with the status `damaged` gets its seq, so that
every later message keeps its own. Afterwards the recorded end of every branch matches its messages,
and reaches as far as the branches that start on it need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from holdfast import codec, ids
from holdfast.errors import Damaged
from holdfast.storage.rows import MessageRow
from holdfast.storage.sqlite.repair.check_history import (
    LAST_SEQ_QUERY,
    BeyondHead,
    BranchExtent,
    HistoryFinding,
    MisplacedMessage,
    MissingMessages,
    PresentMessage,
    next_probe_key,
    walk,
)
from holdfast.storage.sqlite.repair.column_rules import (
    MESSAGES,
    has_written_types,
    read_message,
    text_of,
    written_row,
)
from holdfast.storage.sqlite.repair.copy_rows import RowCopier, as_row_number
from holdfast.storage.sqlite.repair.rebuild_sessions import SessionRebuilder
from holdfast.storage.sqlite.repair.row_scan import (
    UNREADABLE,
    UnreadableRange,
    Value,
    Values,
    scan_rows,
)
from holdfast.storage.sqlite.tables import SEQ_BITS, SEQ_MASK, message_rowid

_MAX_PLACEHOLDER_TAIL: Final = 1_000
_CHUNK_BYTES: Final = 4096


class MessageRebuilder:
    """Copies and repairs messages."""

    def __init__(self, copier: RowCopier, rebuilder: SessionRebuilder) -> None:
        """Fill the branches that `rebuilder` has rebuilt."""
        self._copier = copier
        self._session_rebuilder = rebuilder
        self._max_messages = copier.capacity
        self._forks: dict[int, int] = {}  # The last seq of each branch that others start after.
        self.messages = 0

    def run(self) -> None:
        """Copy all messages, and insert placeholders for missing ones."""
        self._find_forks()
        self._histories()
        self._extend_to_forks()

    def _find_forks(self) -> None:
        query = (
            "SELECT parent, max(fork_seq) FROM branches WHERE parent IS NOT NULL GROUP BY parent"
        )
        for parent, fork_seq in self._copier.target.execute(query):
            self._forks[int(str(parent))] = int(str(fork_seq))

    def _histories(self) -> None:
        current: BranchExtent | None = None
        reached = 0
        items = scan_rows(self._copier.source, MESSAGES, self._next_place)
        for finding in walk(items, self._branches(), self._max_messages):
            if isinstance(finding, UnreadableRange | MisplacedMessage):
                self._quarantine(finding)
                continue
            if current is None or finding.branch.number != current.number:
                self._set_end(current, reached)
                current = self._with_session(finding.branch)
                reached = current.fork_seq
            reached = self._apply(current, finding, reached)
        self._set_end(current, reached)

    def _branches(self) -> Iterator[BranchExtent]:
        for number in self._copier.row_numbers("branches"):
            row = self._copier.fetch_first(
                "SELECT session, fork_seq FROM branches WHERE n = ?", number
            )
            session, fork_seq = row or (None, 0)
            unsure = number in self._session_rebuilder.unknown_ends
            last = None if unsure else self._copier.fetch_first(LAST_SEQ_QUERY, number)
            yield BranchExtent(
                number=number,
                session=as_row_number(session),
                tenant=self._copier.tenant_of(session),
                fork_seq=as_row_number(fork_seq) or 0,
                last=last[0] if last and isinstance(last[0], int) else None,
            )

    def _next_place(self, key: int) -> int:
        return next_probe_key(self._copier.fetch_first, key)

    def _with_session(self, branch: BranchExtent) -> BranchExtent:
        """Return a branch with a session, inserting both if the branch's row is lost."""
        if branch.session is not None:
            return branch
        session = self._session_rebuilder.new_session(
            None, "its branch is lost", self._tenant_from_blobs(branch)
        )
        self._session_rebuilder.new_branch(branch.number, session)
        self._session_rebuilder.new_head(session, (branch.number, 1))
        self._copier.execute("UPDATE branches SET last_seq = NULL WHERE n = ?", branch.number)
        tenant = self._copier.tenant_of(session)
        return BranchExtent(number=branch.number, session=session, tenant=tenant)

    def _tenant_from_blobs(self, branch: BranchExtent) -> int:
        """Return the tenant of a lost branch's messages from the blobs they reference, or 0."""
        query = (
            "SELECT b.tenant FROM blob_uses u JOIN blobs b ON b.n = u.blob "
            "WHERE u.place BETWEEN ? AND ? LIMIT 1"
        )
        ends = (message_rowid(branch.number, 1), message_rowid(branch.number, SEQ_MASK))
        try:
            found = self._copier.source.execute(query, ends).get
        except (*UNREADABLE, UnicodeDecodeError):
            return 0
        tenant = found if isinstance(found, int) else 0
        return self._copier.fetch_int("SELECT n FROM tenants WHERE n = ?", tenant)

    def _apply(self, branch: BranchExtent, finding: HistoryFinding, reached: int) -> int:
        """Insert the message that was found, or placeholders; return the branch's last seq now."""
        if isinstance(finding, PresentMessage):
            self._message(branch, finding)
            return finding.seq
        if isinstance(finding, MissingMessages):
            problem = f"messages {finding.first} to {finding.last} are missing"
            self._copier.report(problem, branch.session, finding.first)
            if not self._existed(finding):
                return reached
            for seq in range(finding.first, finding.last + 1):
                self._insert_missing(branch, seq)
            return finding.last
        if isinstance(finding, BeyondHead):
            problem = "the history continued beyond its head"
            self._copier.report(problem, branch.session, finding.last)
        return reached

    def _existed(self, missing: MissingMessages) -> bool:
        """True if missing messages are lost, false if the head just counted too many."""
        if not missing.tail:
            return True
        count = missing.last - missing.first + 1
        if missing.lost:
            return count <= self._max_messages
        if missing.branch.session in self._session_rebuilder.damaged_heads:
            return False
        # Nothing shows where the pages were whose rows could not be collected.
        return count <= (self._max_messages if self._copier.collected else _MAX_PLACEHOLDER_TAIL)

    def _message(self, branch: BranchExtent, found: PresentMessage) -> None:
        values = found.row.values
        if found.row.stored_key is not None:
            problem = "the message was stored under a wrong number"
            self._copier.report(problem, branch.session, found.seq)
        try:
            row = written_row(found.seq, values)
            _, needed = read_message(row, self._copier.transaction(branch.tenant).blob)
        except Damaged as error:
            self._copier.report(f"the message {error}", branch.session, found.seq)
            self._insert_damaged(branch, found.seq, values, str(error))
            return
        if not has_written_types(row, values):
            problem = "the message was not stored as it was written"
            self._copier.report(problem, branch.session, found.seq)
        query = "SELECT sha256 FROM blobs WHERE tenant = ? AND sha256 = ?"
        self._insert(branch, row, query, needed)
        self.messages += 1

    def _insert(
        self, branch: BranchExtent, row: MessageRow, query: str, blobs: Iterable[Value]
    ) -> None:
        """Insert a message; `query` returns the hash of each of its blobs that is stored."""
        found = (self._copier.fetch_first(query, branch.tenant, blob) for blob in blobs)
        hashes = [str(blob[0]) for blob in found if blob is not None]
        self._copier.add_message(branch.tenant, branch.number, row, hashes)

    def _insert_damaged(self, branch: BranchExtent, seq: int, values: Values, why: str) -> None:
        number = self._copier.quarantine("messages", why, values["body"])
        turn = values["turn"]
        name = text_of(values["id"]) or ids.message_id()
        self._insert_placeholder(branch, seq, name, turn if isinstance(turn, int) else None, number)

    def _insert_missing(self, branch: BranchExtent, seq: int) -> None:
        """Insert a placeholder for a missing message, keeping what can be read of it."""
        rowid = message_rowid(branch.number, seq)
        name, turn = self._readable_id(rowid)
        number = None
        body = self._readable_body(rowid)
        if body:
            number = self._copier.quarantine("messages", "only its beginning can be read", body)
        self._insert_placeholder(branch, seq, name or ids.message_id(), turn, number)

    def _readable_id(self, rowid: int) -> tuple[str | None, int | None]:
        query = "SELECT CAST(id AS BLOB), turn FROM messages NOT INDEXED WHERE place = ?"
        try:
            name, turn = self._copier.source.execute(query, (rowid,)).fetchone() or (None, None)
        except (*UNREADABLE, UnicodeDecodeError):
            return None, None
        text = text_of(name) if isinstance(name, bytes) else None
        return text, turn if isinstance(turn, int) else None

    def _readable_body(self, rowid: int) -> bytes:
        """Return the readable beginning of a body."""
        data = b""
        try:
            with self._copier.source.blob_open(
                "main", "messages", "body", rowid, writeable=False
            ) as body:
                while chunk := body.read(min(_CHUNK_BYTES, body.length() - len(data))):
                    data += chunk
        except (*UNREADABLE, apsw.AbortError):
            return data
        return data

    def _insert_placeholder(
        self, branch: BranchExtent, seq: int, name: str, turn: int | None, quarantined: int | None
    ) -> None:
        body = codec.encode_unchecked(codec.placeholder(name, {"quarantine": quarantined})).body
        query = "SELECT sha256 FROM blobs WHERE tenant = ? AND n = ?"
        blobs = self._referenced_blobs(message_rowid(branch.number, seq))
        self._insert(branch, MessageRow.create(seq, name, turn, body), query, blobs)

    def _referenced_blobs(self, rowid: int) -> list[Value]:
        """Return the numbers of a lost message's blobs, which are purged with its placeholder."""
        query = "SELECT blob FROM blob_uses WHERE place = ?"
        try:
            return [blob for (blob,) in self._copier.source.execute(query, (rowid,)).fetchall()]
        except (*UNREADABLE, UnicodeDecodeError):
            return []

    def _set_end(self, branch: BranchExtent | None, reached: int) -> None:
        """Set the end of a branch, in its head or its row, to its last message."""
        if branch is None:
            return
        query = "UPDATE heads SET seq = ? WHERE branch = ? AND session = ?"
        self._copier.execute(query, reached, branch.number, branch.session)
        query = "UPDATE branches SET last_seq = ? WHERE n = ? AND last_seq IS NOT NULL"
        self._copier.execute(query, reached, branch.number)

    def _extend_to_forks(self) -> None:
        """Extend every branch with placeholders to the last message that others start after."""
        for number, fork_seq in sorted(self._forks.items()):
            reached = self._copier.fetch_int(LAST_SEQ_QUERY, number)
            if fork_seq <= reached:
                continue
            session = self._copier.fetch_int("SELECT session FROM branches WHERE n = ?", number)
            tenant = self._copier.tenant_of(session)
            branch = BranchExtent(number=number, session=session, tenant=tenant)
            if fork_seq - reached > self._max_messages:
                query = "UPDATE branches SET fork_seq = ?1 WHERE parent = ?2 AND fork_seq > ?1"
                self._copier.execute(query, reached, number)
                continue
            problem = f"messages {reached + 1} to {fork_seq} are missing"
            self._copier.report(problem, session, reached + 1)
            for seq in range(reached + 1, fork_seq + 1):
                self._insert_missing(branch, seq)
            self._set_end(branch, fork_seq)

    def _quarantine(self, finding: UnreadableRange | MisplacedMessage) -> None:
        if isinstance(finding, UnreadableRange):
            first, last = finding.first >> SEQ_BITS, finding.last >> SEQ_BITS
            problem = f"messages of branches {first} to {last} cannot be read: {finding.why}"
            self._copier.report(problem)
            return
        known = self._copier.fetch_first(
            "SELECT id, crc FROM messages WHERE place = ?", finding.key
        )
        if known == (finding.values["id"], finding.values["crc"]):
            return  # The same page was read twice.
        reason = f"stored under a wrong number, {finding.key}"
        self._copier.quarantine_row("messages", reason, finding.values)
