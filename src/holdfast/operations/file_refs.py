"""Files that are given by hash alone: their data must be stored, and of the size they state."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.codec import EncodedMessage, EncodedRecord, check_file_sizes
from holdfast.errors import BadMessage
from holdfast.storage.protocol import Transaction
from holdfast.values import Record


def check_file_refs(tx: Transaction, batch: Iterable[EncodedMessage | EncodedRecord]) -> None:
    """Raise `BadMessage` if a file's data is not stored, or has another size than it states."""
    for item in batch:
        entry = item.record if isinstance(item, EncodedRecord) else item.message
        sizes: dict[str, int] = {}
        for sha256 in item.blob_refs:
            data = tx.blob(sha256)
            if data is None:
                field = "files" if isinstance(entry, Record) else "parts"
                raise BadMessage(
                    f"{field}: data {sha256} of a file is not in this store; nothing was stored. "
                    "Pass it with File(data=…)."
                )
            sizes[sha256] = len(data)
        if sizes:
            check_file_sizes(entry, sizes.get)
