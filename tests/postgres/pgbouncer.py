"""A real pgbouncer before the server of the tests, on a socket of its own.

It is a package of the operating system (`make packages` installs it). Tests that need it are
skipped where it is missing.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
import pytest

from tests.servers import OWNER, WORKER

_PORT = 6_432
_PATIENCE_S = 60.0
_CONFIGURATION = """
[databases]
* = host={server} port={port}

[pgbouncer]
unix_socket_dir = {folder}
listen_port = {own_port}
auth_type = trust
auth_file = {folder}/users
admin_users = postgres
logfile = {folder}/log
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 500
"""


def program() -> str | None:
    """Return the path of the program, if it is installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class Pgbouncer:
    """A pooler before a server that listens on a socket of this machine."""

    def __init__(self, folder: Path, server: Path, port: str, mode: str, size: int) -> None:
        self.folder = folder
        self._user = pwd.getpwuid(server.stat().st_uid).pw_name if os.geteuid() == 0 else None
        text = _CONFIGURATION.format(
            server=server.parent, port=port, folder=folder, own_port=_PORT, mode=mode, size=size
        )
        (folder / "pgbouncer.ini").write_text(text)
        (folder / "users").write_text("".join(f'"{u}" ""\n' for u in ("postgres", OWNER, WORKER)))
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def port(self) -> int:
        """The port of its socket."""
        return _PORT

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.folder / f".s.PGSQL.{_PORT}"

    def start(self) -> None:
        """Start it; it accepts connections when this returns."""
        asked = program()
        assert asked is not None
        (self.folder / "pgbouncer.pid").unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [asked, "-q", str(self.folder / "pgbouncer.ini")],
            user=self._user,
            group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            extra_groups=None if self._user is None else [],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _PATIENCE_S
        while not self._accepts():
            assert self._process.poll() is None, self._log()
            assert time.monotonic() < until, self._log()
            time.sleep(0.01)

    def _accepts(self) -> bool:
        """True if it accepts connections; its socket is there a little earlier."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket)) == 0

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else "it did not even begin a log"

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def url(self, url: str, **options: object) -> str:
        """Return the URL of a store on the server as one through this."""
        parts = urlsplit(url)
        query = {
            **dict(parse_qsl(parts.query)),
            "host": str(self.folder),
            "port": str(self.port),
            **{name: str(value) for name, value in options.items()},
        }
        return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))


def socket_of(url: str) -> tuple[Path, str]:
    """Return the server's socket and port; skip the test without one, or without the program."""
    if program() is None:
        pytest.skip("pgbouncer is not installed: `make packages` does that as root")
    found = psycopg.conninfo.conninfo_to_dict(url)
    host, port = str(found.get("host", "")), str(found.get("port", 5432))
    if not host.startswith("/"):
        pytest.skip("needs a server that listens on a socket of this machine")
    return Path(host) / f".s.PGSQL.{port}", port
