"""Rebuilding the messages of every branch, with placeholders for those that are lost.

Messages are compared with their branches (see `check_history.walk`). The bytes of an unreadable
message go into `quarantine`, and a placeholder with the status `damaged` gets its seq, so that
every later message keeps its own. Afterwards the recorded end of every branch matches its messages,
and reaches as far as the branches that start on it need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from holdfast import codec, ids
from holdfast.clock import EPOCH
from holdfast.errors import Damaged
from holdfast.storage.sqlite.repair.check_history import (
    LAST_OF_BRANCH,
    SEQ_BITS,
    SEQ_MASK,
    Branch,
    Finding,
    Found,
    Longer,
    Misplaced,
    Missing,
    capacity,
    next_try,
    walk,
)
from holdfast.storage.sqlite.repair.column_rules import MESSAGES, as_written, read_message, text_of
from holdfast.storage.sqlite.repair.copy_rows import Carrier, as_number
from holdfast.storage.sqlite.repair.rebuild_sessions import Mender
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE, Hole, Values, rows
from holdfast.storage.sqlite.transaction import bind, bind_json, place
from holdfast.values import Raw

_SHORT_TAIL: Final = 1_000
_PIECE: Final = 4096


class Refiller:
    """Copies and repairs messages."""

    def __init__(self, copier: Carrier, rebuilder: Mender) -> None:
        """Fill the branches that `rebuilder` has rebuilt."""
        self._carrier = copier
        self._mender = rebuilder
        self._most = capacity(copier.source)
        self._forks: dict[int, int] = {}  # The last seq of each branch that others start after.
        self.messages = 0

    def run(self) -> None:
        """Copy all messages, and insert placeholders for missing ones."""
        self._find_forks()
        self._histories()
        self._reach_forks()

    def _find_forks(self) -> None:
        query = (
            "SELECT parent, max(fork_seq) FROM branches WHERE parent IS NOT NULL GROUP BY parent"
        )
        for parent, fork_seq in self._carrier.target.execute(query):
            self._forks[int(str(parent))] = int(str(fork_seq))

    def _histories(self) -> None:
        current: Branch | None = None
        reached = 0
        items = rows(self._carrier.source, MESSAGES, self._next_place)
        for finding in walk(items, self._branches(), self._most):
            if isinstance(finding, Hole | Misplaced):
                self._aside(finding)
                continue
            if current is None or finding.branch.number != current.number:
                self._finish(current, reached)
                current = self._adopted(finding.branch)
                reached = current.fork_seq
            reached = self._place(current, finding, reached)
        self._finish(current, reached)

    def _branches(self) -> Iterator[Branch]:
        for number in self._carrier.numbers("branches"):
            row = self._carrier.first("SELECT session, fork_seq FROM branches WHERE n = ?", number)
            session, fork_seq = row or (None, 0)
            unsure = number in self._mender.unsure
            last = None if unsure else self._carrier.first(LAST_OF_BRANCH, number)
            yield Branch(
                number=number,
                session=as_number(session),
                tenant=self._carrier.tenant_of(session),
                fork_seq=as_number(fork_seq) or 0,
                last=last[0] if last and isinstance(last[0], int) else None,
            )

    def _next_place(self, key: int) -> int:
        return next_try(self._carrier.first, key)

    def _adopted(self, branch: Branch) -> Branch:
        """Return a branch with a session, inserting both if the branch's row is lost."""
        if branch.session is not None:
            return branch
        session = self._mender.new_session(None, "its branch is lost", self._told_by_blobs(branch))
        self._mender.new_branch(branch.number, session)
        self._mender.new_head(session, (branch.number, 1))
        self._carrier.execute("UPDATE branches SET last_seq = NULL WHERE n = ?", branch.number)
        tenant = self._carrier.tenant_of(session)
        return Branch(number=branch.number, session=session, tenant=tenant)

    def _told_by_blobs(self, branch: Branch) -> int:
        """Return the tenant of a lost branch's messages from the blobs they reference, or 0."""
        query = (
            "SELECT b.tenant FROM blob_uses u JOIN blobs b ON b.n = u.blob "
            "WHERE u.place BETWEEN ? AND ? LIMIT 1"
        )
        ends = (place(branch.number, 1), place(branch.number, SEQ_MASK))
        try:
            found = self._carrier.source.execute(query, ends).get
        except (*UNREADABLE, UnicodeDecodeError):
            return 0
        tenant = found if isinstance(found, int) else 0
        return self._carrier.number("SELECT n FROM tenants WHERE n = ?", tenant)

    def _place(self, branch: Branch, finding: Finding, reached: int) -> int:
        """Insert the message that was found, or placeholders; return the branch's last seq now."""
        if isinstance(finding, Found):
            self._message(branch, finding)
            return finding.seq
        if isinstance(finding, Missing):
            problem = f"messages {finding.first} to {finding.last} are missing"
            self._carrier.tell(problem, branch.session, finding.first)
            if not self._was_there(finding):
                return reached
            for seq in range(finding.first, finding.last + 1):
                self._stand_in(branch, seq)
            return finding.last
        if isinstance(finding, Longer):
            problem = "the history continued beyond its head"
            self._carrier.tell(problem, branch.session, finding.last)
        return reached

    def _was_there(self, missing: Missing) -> bool:
        """True if missing messages are lost, false if the head just counted too many."""
        if not missing.tail:
            return True
        count = missing.last - missing.first + 1
        if missing.lost:
            return count <= self._most
        return count <= _SHORT_TAIL and missing.branch.session not in self._mender.doubted

    def _message(self, branch: Branch, found: Found) -> None:
        rowid, values = place(branch.number, found.seq), found.row.values
        if found.row.filed_as is not None:
            problem = "the message was stored under a wrong number"
            self._carrier.tell(problem, branch.session, found.seq)
        try:
            _, needed = read_message(values, self._carrier.getter(branch.tenant))
        except Damaged as error:
            self._carrier.tell(f"the message {error}", branch.session, found.seq)
            self._bad_message(branch, found.seq, values, str(error))
            return
        typed = as_written(values)
        if typed != values:
            problem = "the message was not stored as it was written"
            self._carrier.tell(problem, branch.session, found.seq)
        self._carrier.insert("messages", {"place": rowid, **typed})
        self.messages += 1
        for sha256 in needed:
            self._use(branch.tenant, rowid, sha256)

    def _use(self, tenant: int | None, rowid: int, sha256: str) -> None:
        query = "SELECT n FROM blobs WHERE tenant = ? AND sha256 = ?"
        blob = self._carrier.number(query, tenant, sha256)
        if blob:
            self._carrier.insert("blob_uses", {"place": rowid, "blob": blob})

    def _bad_message(self, branch: Branch, seq: int, values: Values, why: str) -> None:
        number = self._carrier.keep_aside("messages", why, values["body"])
        turn = values["turn"]
        name = text_of(values["id"]) or ids.message_id()
        self._add_stand_in(branch, seq, name, turn if isinstance(turn, int) else None, number)

    def _stand_in(self, branch: Branch, seq: int) -> None:
        """Insert a placeholder for a missing message, keeping what can be read of it."""
        rowid = place(branch.number, seq)
        name, turn = self._left_of_name(rowid)
        number = None
        body = self._left_of_body(rowid)
        if body:
            number = self._carrier.keep_aside("messages", "only its beginning can be read", body)
        self._add_stand_in(branch, seq, name or ids.message_id(), turn, number)

    def _left_of_name(self, rowid: int) -> tuple[str | None, int | None]:
        query = "SELECT CAST(id AS BLOB), turn FROM messages NOT INDEXED WHERE place = ?"
        try:
            name, turn = self._carrier.source.execute(query, (rowid,)).fetchone() or (None, None)
        except (*UNREADABLE, UnicodeDecodeError):
            return None, None
        text = text_of(name) if isinstance(name, bytes) else None
        return text, turn if isinstance(turn, int) else None

    def _left_of_body(self, rowid: int) -> bytes:
        """Return the readable beginning of a body."""
        data = b""
        try:
            with self._carrier.source.blob_open(
                "main", "messages", "body", rowid, writeable=False
            ) as body:
                while chunk := body.read(min(_PIECE, body.length() - len(data))):
                    data += chunk
        except (*UNREADABLE, apsw.AbortError):
            return data
        return data

    def _add_stand_in(
        self, branch: Branch, seq: int, name: str, turn: int | None, quarantined: int | None
    ) -> None:
        part = Raw("damaged", {"quarantine": quarantined})
        body = codec.to_json(codec.Body(role="system", at=EPOCH, parts=(part,), status="damaged"))
        row: Values = {
            "place": place(branch.number, seq),
            "id": bind(name),
            "turn": turn,
            "crc": codec.checksum(name, turn, body),
            "body": bind_json(body),
        }
        self._carrier.insert("messages", row)
        self._keep_uses(place(branch.number, seq))

    def _keep_uses(self, rowid: int) -> None:
        """Keep a lost message's blob references, so that its blobs are purged with it."""
        query = "SELECT blob FROM blob_uses WHERE place = ?"
        try:
            found = self._carrier.source.execute(query, (rowid,)).fetchall()
        except (*UNREADABLE, UnicodeDecodeError):
            return
        for (blob,) in found:
            if self._carrier.number("SELECT n FROM blobs WHERE n = ?", blob):
                self._carrier.insert("blob_uses", {"place": rowid, "blob": blob})

    def _finish(self, branch: Branch | None, reached: int) -> None:
        """Set the end of a branch, in its head or its row, to its last message."""
        if branch is None:
            return
        query = "UPDATE heads SET seq = ? WHERE branch = ? AND session = ?"
        self._carrier.execute(query, reached, branch.number, branch.session)
        query = "UPDATE branches SET last_seq = ? WHERE n = ? AND last_seq IS NOT NULL"
        self._carrier.execute(query, reached, branch.number)

    def _reach_forks(self) -> None:
        """Extend every branch with placeholders to the last message that others start after."""
        for number, fork_seq in sorted(self._forks.items()):
            reached = self._carrier.number(LAST_OF_BRANCH, number)
            if fork_seq <= reached:
                continue
            session = self._carrier.number("SELECT session FROM branches WHERE n = ?", number)
            branch = Branch(number=number, session=session)
            if fork_seq - reached > self._most:
                query = "UPDATE branches SET fork_seq = ?1 WHERE parent = ?2 AND fork_seq > ?1"
                self._carrier.execute(query, reached, number)
                continue
            problem = f"messages {reached + 1} to {fork_seq} are missing"
            self._carrier.tell(problem, session, reached + 1)
            for seq in range(reached + 1, fork_seq + 1):
                self._stand_in(branch, seq)
            self._finish(branch, fork_seq)

    def _aside(self, finding: Hole | Misplaced) -> None:
        if isinstance(finding, Hole):
            first, last = finding.first >> SEQ_BITS, finding.last >> SEQ_BITS
            problem = f"messages of branches {first} to {last} cannot be read: {finding.why}"
            self._carrier.tell(problem)
            return
        known = self._carrier.first("SELECT id, crc FROM messages WHERE place = ?", finding.key)
        if known == (finding.values["id"], finding.values["crc"]):
            return  # The same page was read twice.
        reason = f"stored under a wrong number, {finding.key}"
        self._carrier.set_aside("messages", reason, finding.values)
