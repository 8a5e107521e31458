"""Where a store's files lie, and whether that place can be trusted.

A store is one file and its companions: `-wal` and `-shm` of SQLite, `-queue` and `-lock` of ours.
They are private (0600 in a directory 0700), never reached through a symbolic link, never somebody
else's, and never on a network file system, where the locks and the shared memory that SQLite
relies on do not work.

The file itself is never opened here: closing any descriptor of it would drop the locks that SQLite
holds in this process.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from holdfast.errors import Damaged, StoreUnavailable

_MOUNT_POINT: Final = 4  # Which field of a line of mountinfo it is.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
SMALLEST_DATABASE: Final = 512  # Anything shorter is an empty database to the engine.
COMPANIONS: Final = ("-wal", "-shm", "-queue", "-lock")
NETWORK: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.davfs2",
        "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
    }
)  # fmt: skip


def prepare_directory(path: Path) -> None:
    """Make the store's directory, private, if it is not there."""
    missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
    try:
        for directory in reversed(missing):
            directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
            sync_directory(directory.parent)
    except OSError as error:
        raise StoreUnavailable(f"{path.parent} cannot be made: {error.strerror}.") from error


def check(path: Path) -> bool:
    """Check an existing store's file; false if there is none yet."""
    refuse_network(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not log_size(path):
            return False
        # Another process may have made the store since: a log comes after its file.
        if path.exists():
            return check(path)
        raise _orphaned(path) from None
    except NotADirectoryError:
        raise StoreUnavailable(f"{path.parent} is not a directory; choose another path.") from None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}.") from error
    if stat.S_ISLNK(found.st_mode):
        raise StoreUnavailable(
            f"{path} is a symbolic link; a store is not opened through one. Use the real path."
        )
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailable(f"{path} is not a file; choose another path.")
    if found.st_uid != os.geteuid():
        raise StoreUnavailable(
            f"{path} belongs to user {found.st_uid}, not to you; it was not opened."
        )
    if found.st_size < SMALLEST_DATABASE:
        size = f"only {found.st_size} bytes long" if found.st_size else "empty"
        raise Damaged(
            f"{path} is {size}, which a store never is: it was cut off, or something else made it. "
            "Restore a backup over it, or remove it to begin a new store there."
        )
    return True


def refuse_orphaned_log(path: Path) -> None:
    """Refuse to make a store beside a write-ahead log, which would be replayed into it."""
    if log_size(path):
        raise _orphaned(path)


def _orphaned(path: Path) -> Damaged:
    return Damaged(
        f"{path} is missing but {path.name}-wal is there: the store was moved or deleted without "
        "it. Put the file back beside it, or move the log away to begin a new store."
    )


def log_size(path: Path) -> int:
    """Return the bytes in a store's write-ahead log; 0 if there is none."""
    return size(companion(path, "-wal"))


def size(path: Path) -> int:
    """Return the bytes in a file; 0 if there is none, as when its last user just removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def companion(path: Path, suffix: str) -> Path:
    """Name a file that belongs to the store."""
    return path.with_name(path.name + suffix)


def search_suffix(tenant: int) -> str:
    """Name what the file of a tenant's search index ends with; the first tenant is the default."""
    return "-search" if tenant == 1 else f"-search.{tenant}"


def create_private(path: Path) -> None:
    """Make an empty file that only its owner can read, whatever the umask."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))


def sync_directory(directory: Path) -> None:
    """Make a new name in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_network(path: Path) -> None:
    """Refuse a file system that is shared over a network."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return  # Only Linux tells; elsewhere this is the user's to know.
    kind = filesystem_of(Path(os.path.realpath(path.parent)), mounts)
    if kind in NETWORK:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite's locks cannot be relied "
            "on and conversations would be lost. Use a local disk, or a database server."
        )


def filesystem_of(directory: Path, mountinfo: str) -> str | None:
    """Return which kind of file system holds a directory, given the table of mounts."""
    where = f"{directory}/".replace("//", "/")
    longest, kind = 0, None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ", 5)
        if not separator or len(fields) <= _MOUNT_POINT:
            continue
        point = fields[_MOUNT_POINT].rstrip("/") + "/"
        if "\\" in point:
            point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), point)
        # A later line with the same mount point covers an earlier one.
        if len(point) >= longest and where.startswith(point):
            longest, kind = len(point), right.split(" ", 1)[0]
    return kind
