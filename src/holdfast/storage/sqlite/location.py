"""The files of a store, and checks that their location is safe.

A store is one file and its companions: SQLite's `-wal` and `-shm`, and Holdfast's `-queue` and
`-lock`. They are private (mode 0600 in a directory of mode 0700), owned by the current user, never
reached through a symbolic link, and never on a network file system, where the locks and the shared
memory that SQLite relies on do not work.

The file itself is never opened here: closing any descriptor of it would drop the locks that SQLite
holds in this process.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from holdfast.errors import Damaged, StoreUnavailable, system_errors

_MOUNT_POINT_FIELD: Final = 4  # Index of this field in a line of mountinfo.
_OCTAL_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
MIN_DATABASE_BYTES: Final = 512  # SQLite takes anything shorter for an empty database.
COMPANION_SUFFIXES: Final = ("-wal", "-shm", "-queue", "-lock")
NETWORK_FILESYSTEMS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.davfs2",
        "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
    }
)  # fmt: skip


def prepare_directory(path: Path) -> None:
    """Create the store's directory, private to its owner, if it is missing."""
    missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
    with system_errors("the store's directory cannot be created", "nothing was stored."):
        for directory in reversed(missing):
            directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
            sync_directory(directory.parent)


def check_file(path: Path) -> bool:
    """Return true if a store's file exists, false if it does not; raise if it is not usable."""
    require_utf8(path)
    refuse_network(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not wal_size(path):
            return False
        # Another process may have created the store since: a log is created after its file.
        if path.exists():
            return check_file(path)
        raise _orphaned(path) from None
    except NotADirectoryError:
        raise StoreUnavailable(f"{path.parent} is not a directory; choose another path.") from None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}.") from error
    if stat.S_ISLNK(found.st_mode):
        raise StoreUnavailable(
            f"{path} is a symbolic link; a store is never opened through one. Use the real path."
        )
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailable(f"{path} is not a regular file; choose another path.")
    if found.st_uid != os.geteuid():
        raise StoreUnavailable(
            f"{path} belongs to user {found.st_uid}, not to you; it was not opened."
        )
    if found.st_size < MIN_DATABASE_BYTES:
        size = f"only {found.st_size} bytes long" if found.st_size else "empty"
        raise Damaged(
            f"{path} is {size}, so it is not a store: it was truncated, or another program "
            "created it. Restore a backup with `holdfast restore-backup FILE`, or remove it to "
            "create a new store there."
        )
    return True


def require_utf8(path: Path) -> None:
    """Raise `StoreUnavailable` if a path is not valid UTF-8: SQLite accepts no other."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StoreUnavailable(
            f"{path} is not valid UTF-8, as the path of a store must be; choose another path."
        ) from None


def refuse_orphaned_log(path: Path) -> None:
    """Raise `Damaged` if a write-ahead log exists: SQLite would replay it into a new store."""
    if wal_size(path):
        raise _orphaned(path)


def _orphaned(path: Path) -> Damaged:
    return Damaged(
        f"{path} is missing but {path.name}-wal is there: the store was moved or deleted without "
        "it. Put the file back beside it, or move the log away to create a new store."
    )


def wal_size(path: Path) -> int:
    """Return the size of a store's write-ahead log in bytes; 0 if there is none."""
    return file_size(companion(path, "-wal"))


def file_size(path: Path) -> int:
    """Return a file's size in bytes; 0 if it is missing: the last process to use it removes it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def companion(path: Path, suffix: str) -> Path:
    """Return the path of a store's companion file."""
    return path.with_name(path.name + suffix)


def files_of(path: Path) -> list[Path]:
    """Return the files of a store that exist: its own, its companions, indexes and copies."""
    with system_errors("the store's directory cannot be read", "nothing was changed."):
        beside = sorted(path.parent.iterdir())
    return [p for p in beside if p.name == path.name or p.name.startswith(_beginnings(path))]


def _beginnings(path: Path) -> tuple[str, ...]:
    return f"{path.name}-", f"{path.name}."


def world_writable_parents(directory: Path) -> list[Path]:
    """Return the parents of a directory in which every user may rename or replace it."""
    return [p for p in directory.absolute().parents if _is_world_writable(p.stat().st_mode)]


def _is_world_writable(mode: int) -> bool:
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def search_suffix(tenant: int) -> str:
    """Return the file suffix of a tenant's search index; tenant 1 is the default one."""
    return "-search" if tenant == 1 else f"-search.{tenant}"


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, whatever the umask."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))


def sync_directory(directory: Path) -> None:
    """Make new and deleted names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_network(path: Path) -> None:
    """Raise `StoreUnavailable` if the path is on a network file system."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return  # Only Linux has this file; elsewhere the file system is not checked.
    kind = filesystem_of(Path(os.path.realpath(path.parent)), mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite's locks cannot be relied "
            "on and conversations would be lost. Use a local disk, or a database server."
        )


def filesystem_of(directory: Path, mountinfo: str) -> str | None:
    """Return the type of the file system that holds a directory, given `mountinfo`."""
    where = f"{directory}/".replace("//", "/")
    longest, kind = 0, None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ", 5)
        if not separator or len(fields) <= _MOUNT_POINT_FIELD:
            continue
        point = fields[_MOUNT_POINT_FIELD].rstrip("/") + "/"
        if "\\" in point:
            point = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), point)
        # A later line with the same mount point covers an earlier one.
        if len(point) >= longest and where.startswith(point):
            longest, kind = len(point), right.split(" ", 1)[0]
    return kind
