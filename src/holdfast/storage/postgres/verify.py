"""Reading all of a tenant's rows and reporting damage.

The server checks its pages. Here their content is checked: every message exists and matches its
checksum, every blob matches its hash and exists while a message needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast import codec
from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres.rows import branch_row, text_of
from holdfast.storage.postgres.snapshot import PostgresSnapshot, StatementExecutor, Tenant
from holdfast.storage.protocol import BranchRow
from holdfast.values import Damage

_PAGE_MESSAGES: Final = 500


def find_damage(
    statements: StatementExecutor, tenant: Tenant, snapshot: PostgresSnapshot
) -> Iterator[Damage]:
    """Yield the damage of all messages and blobs of a tenant."""
    whose = (tenant.mark,)
    for row in statements.execute("all_branches", whose).fetchall():
        yield from _damage_of_branch(snapshot, branch_row(row))
    for (sha256,) in statements.execute("all_blobs", whose).fetchall():
        if codec.sha256_hex(snapshot.blob(sha256) or b"") != sha256:
            yield Damage(what=f"blob {sha256} does not match its hash")
    for sha256, owner, seq in statements.execute("missing_blobs", whose).fetchall():
        yield Damage(what=f"blob {sha256} is missing", session_id=text_of(owner), seq=seq)


def _damage_of_branch(snapshot: PostgresSnapshot, branch: BranchRow) -> Iterator[Damage]:
    owner = branch.session_id
    for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE_MESSAGES):
        last = min(branch.last_seq, first + _PAGE_MESSAGES - 1)
        ((_, rows),) = snapshot.messages([Segment(branch.n, first, last, owner)])
        there = {row.seq: row for row in rows}
        for seq in range(first, last + 1):
            row = there.get(seq)
            if row is None:
                yield Damage(what=f"message {seq} is missing", session_id=owner, seq=seq)
            elif codec.checksum(row.id, row.turn, row.body) != row.crc:
                what = f"message {seq} does not match its checksum"
                yield Damage(what=what, session_id=owner, seq=seq)
