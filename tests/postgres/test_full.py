"""A full disk: nothing acknowledged is lost, and writing goes on when there is room again."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message
from holdfast.errors import StoreFull
from tests.servers import OWNER, OwnServer, as_user

_SMALL, _LARGER = "24m", "64m"


def _mount(*options: str) -> bool:
    """Mount a file system in memory; only the superuser of a machine may."""
    program = shutil.which("mount")
    if program is None or os.geteuid() != 0:
        return False
    done = subprocess.run([program, *options], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A server with a role that may own a store; whatever is mounted in its folder goes with it."""
    own = OwnServer()
    with psycopg.connect(own.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {OWNER} LOGIN")
    yield own
    own.end()


@pytest.fixture
def disk(server: OwnServer) -> Path:
    """A small disk on which the server may write."""
    folder = server.folder / "disk"
    folder.mkdir()
    if not _mount("-t", "tmpfs", "-o", f"size={_SMALL}", "tmpfs", str(folder)):
        pytest.skip("needs the right to mount")
    place = folder / "tables"
    place.mkdir(mode=0o700)
    folder.chmod(0o755)
    os.chown(place, server.data.stat().st_uid, server.data.stat().st_gid)
    return place


@pytest.fixture
def full(server: OwnServer, disk: Path) -> str:
    """A database whose tables are on that disk, for the owner of its store."""
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        admin.execute(f"CREATE DATABASE small OWNER {OWNER} TABLESPACE small")
    return as_user(server.url, OWNER, "small")


def test_a_full_disk_loses_nothing(full: str, disk: Path) -> None:
    """What was acknowledged is there, what was refused is not; with room it is stored, once."""
    said: list[str] = []
    with holdfast.open(full) as store:
        session = store.session("k")
        refused = None
        while refused is None:
            message = Message.user(os.urandom(60_000).hex(), id=str(len(said)))
            try:
                session.append(message)
            except StoreFull as error:
                assert "nothing was stored" in str(error)  # noqa: PT017 - raised after many that are not
                refused = message
            else:
                said.append(message.text)
        assert len(said) > 10
        assert [m.text for m in session.messages()] == said
        assert _mount("-o", f"remount,size={_LARGER}", str(disk.parent))
        for _ in range(2):
            session.append(refused)
        assert [m.text for m in session.messages()] == [*said, refused.text]
        assert store.verify() == []
