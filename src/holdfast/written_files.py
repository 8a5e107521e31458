"""Every file that Holdfast writes: its name, where it is, and what an erasure does with it.

`FILES` is the whole list. What is erased must be gone from all of them, or the report names the
file: the wipe deletes what this list says is deleted, and the residue scan searches what it says is
wiped, deleted or kept. A module that writes files must be listed here, which a test checks.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

Place: TypeAlias = Literal[
    "store",  # the directory of the store
    "target",  # the directory of the file that it becomes
    "temporary",  # the system's directory of temporary files
    "state",  # the user's directories, as the system has them
    "data",
    "workspace",  # the directory that tools work in
    "chosen",  # where the user wants it
    "nowhere",  # it has no name
]
Fate: TypeAlias = Literal[
    "wiped",  # what was erased is overwritten in it; then it is searched
    "deleted",  # an erasure deletes it
    "kept",  # a copy that the user made: searched, and named if it holds what was erased
    "yours",  # not searched: the documentation names it
    "passing",  # without a name, so it is gone with its process, however that ends
    "no text",  # it never has any of a conversation
]


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one kind. In the pattern of their names, STORE is the name of the store's file."""

    what: str
    names: str
    place: Place
    fate: Fate
    modules: tuple[str, ...]


ID: Final = "[a-z2-7]{16}"  # a random id, as `ids.session_id` makes them
SEARCH_INDEX: Final = r"-search(\.\d+)?"  # of the default tenant, or of another
MIGRATION_BACKUP: Final = r"\.before-\d{1,3}(\.\d+)?"  # not a year or a date: that is a user's
REPLACED: Final = r"\.replaced-\d+T\d+"
UNFINISHED: Final = rf"\..{{1,40}}\.{ID}\.new"
UNFINISHED_LINK: Final = "unfinished"
INPUT_HISTORY: Final = "chat_history"
DAMAGED_DIRECTORY: Final = ".damaged"
SALVAGED: Final = ".salvaged"
# What the first bytes of a kept file are. A store also has its application id in them.
EXPORT_START: Final = b'{"type":"holdfast",'

_ANY: Final = ".*"
_LOG: Final = "(-wal|-journal)?"
_COMPANION: Final = "(-wal|-journal|-shm)?"

FILES: Final = (
    WrittenFile(
        what="the store, and its log",
        names=f"STORE{_LOG}",
        place="store",
        fate="wiped",
        modules=(
            "storage.sqlite.connection",
            "storage.sqlite.location",
            "storage.sqlite.open_files",
            "storage.sqlite.wipe",
        ),
    ),
    WrittenFile(
        what="its search indexes, and their logs",
        names=f"STORE{SEARCH_INDEX}{_LOG}",
        place="store",
        fate="wiped",
        modules=("search.index_file",),
    ),
    WrittenFile(
        what="shared memory (page numbers) and locks (empty)",
        names=rf"STORE(-shm|-queue|-lock|{SEARCH_INDEX}-shm)",
        place="store",
        fate="no text",
        modules=("storage.sqlite.process_lock",),
    ),
    WrittenFile(
        what="a search index that is being created (empty)",
        names=rf"\.STORE{SEARCH_INDEX}\.{ID}\.new{_COMPANION}",
        place="store",
        fate="no text",
        modules=("search.index_file",),
    ),
    WrittenFile(
        what="the copy that a migration makes before it",
        names=f"STORE{MIGRATION_BACKUP}{_COMPANION}",
        place="store",
        fate="deleted",
        modules=("storage.sqlite.migrations",),
    ),
    WrittenFile(
        what="an unfinished copy: a backup, a salvage or a restore that was killed",
        names=rf"{UNFINISHED}(-\w+)?",
        place="target",
        fate="deleted",
        modules=(
            "storage.sqlite.new_file",
            "storage.sqlite.repair.page_copy",
            "storage.sqlite.repair.page_scan",
            "storage.sqlite.repair.row_scan",
            "storage.sqlite.wal_check",
        ),
    ),
    WrittenFile(
        what="a link to an unfinished copy, which may be anywhere",
        names=rf"\.STORE\.{ID}\.{UNFINISHED_LINK}",
        place="store",
        fate="deleted",
        modules=("storage.sqlite.new_file",),
    ),
    WrittenFile(
        what="what a restored backup replaced",
        names=f"STORE{REPLACED}({SEARCH_INDEX})?{_LOG}",
        place="store",
        fate="kept",
        modules=("storage.sqlite.restore",),
    ),
    WrittenFile(
        what="a damaged store that was set aside, in a directory of its own",
        names=_ANY,
        place="store",
        fate="kept",
        modules=("cli.doctor_fix",),
    ),
    WrittenFile(
        what="a finished backup, salvaged store or export beside the store",
        names=_ANY,
        place="store",
        fate="kept",
        modules=("storage.sqlite.new_file", "transfer.export_file"),
    ),
    WrittenFile(
        what="a finished backup, salvaged store or export elsewhere",
        names=_ANY,
        place="chosen",
        fate="yours",
        modules=("storage.sqlite.new_file", "transfer.export_file"),
    ),
    WrittenFile(
        what="an export until it is whole, and what `import -` and `export -o -` pass on",
        names=_ANY,
        place="nowhere",
        fate="passing",
        modules=("cli.commands.export", "cli.commands.import_", "transfer.export_file"),
    ),
    WrittenFile(
        what="SQLite's own temporary files",
        names=r"etilqs_\w+",
        place="nowhere",
        fate="passing",
        modules=("storage.sqlite.connection", "search.index_file"),
    ),
    WrittenFile(
        what="what tools write at the model's request; `.holdfast-*.new` until it is whole",
        names=_ANY,
        place="workspace",
        fate="yours",
        modules=("agent.tools.workspace",),
    ),
    WrittenFile(
        what="the stores that the user trusts, by their ids",
        names="known_stores",
        place="state",
        fate="no text",
        modules=("cli.known_stores",),
    ),
    WrittenFile(
        what="what was typed in a chat; nothing writes it any more, and erasing commands delete it",
        names=INPUT_HISTORY,
        place="state",
        fate="deleted",
        modules=(),
    ),
    WrittenFile(
        what="the weights of local models, and how their download went",
        names=r".*\.gguf(\.LICENSE)?|\.getting-.*",
        place="data",
        fate="no text",
        modules=("agent.models.weights",),
    ),
    WrittenFile(
        what="a proof run's own store and logs, of made-up text",
        names="holdfast-prove-.*",
        place="chosen",
        fate="no text",
        modules=("proof.checker.event_log", "proof.runner", "proof.script"),
    ),
    WrittenFile(
        what="what tests of others give to holdfast.testing",
        names="holdfast-.*",
        place="temporary",
        fate="no text",
        modules=(
            "testing.conformance.retention_tests",
            "testing.faults.crash_states",
            "testing.faults.recorder",
            "testing.faults.shim",
            "testing.faults.trace",
        ),
    ),
    WrittenFile(
        what="the null device",
        names="null",
        place="nowhere",
        fate="passing",
        modules=("cli.program", "storage.postgres.connection", "transfer.export"),
    ),
)


def names_beside(store: str, *fates: Fate) -> re.Pattern[str]:
    """Return a pattern of the names that files beside a store have, of kinds with these fates.

    It leaves out what can have any name.
    """
    names = [
        file.names
        for file in FILES
        if file.place == "store" and file.fate in fates and file.names != _ANY
    ]
    return re.compile("|".join(f"({name.replace('STORE', re.escape(store))})" for name in names))
