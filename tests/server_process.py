"""A program that runs a PostgreSQL server for tests, and stops it when no process uses it any more.

Each process that uses the server holds a shared lock on the file `users` beside it. The system
releases it when the process ends, even if it is killed. The keeper waits in the background for the
exclusive lock; when it gets it, no user is left, and it stops the server and removes the folder. If
a keeper itself was killed, the next one clears up after it: it removes folders without users.

`python keeper.py FOLDER PROGRAMS [USER]` prints the URL of the server's superuser. Servers refuse
to run as root, so root names another user. The initial data of a server is made once and kept in
`initial` beside it: another keeper that is given that folder (`HOLDFAST_TEST_INITIAL`) copies it,
which takes a fraction of the time.
"""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "holdfast-postgres-"
INITIAL = "HOLDFAST_TEST_INITIAL"
_PATIENCE = 60.0
_ASKED = 500  # How often a server is asked to stop before it is killed.


# --- locks --------------------------------------------------------------------------------------


def use(folder: Path) -> int:
    """Register this process as a user of a folder's server until it ends or closes the result."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        with suppress(FileNotFoundError):  # The folder was removed just now.
            users = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.lockf(users, fcntl.LOCK_SH)  # Waits while it is being cleared away.
            if _is_still(users, folder / "users"):
                return users
            os.close(users)


def _is_still(opened: int, path: Path) -> bool:
    """True if an opened file is still the one at that path, and was not removed."""
    try:
        return os.path.samestat(os.fstat(opened), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def _alone(path: Path, *, wait: bool) -> Iterator[bool]:
    """Take a file's exclusive lock; yield whether that succeeded, on the file at that path."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _is_locked(opened, wait=wait) and _is_still(opened, path)
    finally:
        os.close(opened)


def _is_locked(opened: int, *, wait: bool) -> bool:
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


# --- the server ---------------------------------------------------------------------------------


class Server:
    """A server whose data, log and socket are in one folder."""

    def __init__(self, folder: Path, programs: Path, user: str | None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.initial = folder / "initial"
        self.log = folder / "log"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.programs = programs
        self._user = user

    @property
    def pid(self) -> int:
        """The pid of the server's main process; 0 if there is none."""
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return 0

    def make(self) -> None:
        """Create the data of a server and start it."""
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        given = os.environ.get(INITIAL)
        if given is None:
            self._do("initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "-U", "postgres")
            self._run("cp", "-a", str(self.data), str(self.initial))
        else:
            self._run("cp", "-a", given, str(self.data))
        self.start()

    def start(self) -> None:
        """Start it; it accepts connections when this returns."""
        options = f"-h '' -k '{self.folder}'"
        wait = ("-w", "-t", str(int(_PATIENCE)))
        self._do("pg_ctl", "start", "-o", options, "-l", str(self.log), *wait)

    def _do(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs."""
        self._run(str(self.programs / program), "-D", str(self.data), *arguments)

    def _run(self, *command: str) -> None:
        """Run something as the server's user."""
        done = subprocess.run(
            command,
            user=self._user,
            group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            extra_groups=None if self._user is None else [],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            log = self.log.read_bytes() if self.log.exists() else b""
            said = (done.stdout + log[-4000:]).decode(errors="replace")
            raise RuntimeError(f"{Path(command[0]).name} failed: {said}")

    def stop(self) -> None:
        """Stop it at once; its data is not needed any more."""
        pid, tries = self.pid, 0
        while _is_ours(pid, self.data):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT if tries < _ASKED else signal.SIGKILL)
            tries += 1
            time.sleep(0.02)

    def remove(self) -> None:
        """Remove its files; the lock file last, so that a later keeper can finish the removal."""
        for _ in range(500):  # Remaining processes of a killed server may still write.
            for path in self.folder.iterdir():
                if path.is_mount():
                    subprocess.run(["umount", str(path)], check=False)
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != "users":
                    path.unlink(missing_ok=True)
            if [path.name for path in self.folder.iterdir()] == ["users"]:
                break
            time.sleep(0.02)
        (self.folder / "users").unlink()
        with suppress(OSError):  # Another process has just begun to use the name again.
            self.folder.rmdir()


def _is_ours(pid: int, data: Path) -> bool:
    """True if a process is the server of that data, and not another one that reused its pid."""
    return pid > 0 and f" -D {data} " in command(pid)


def command(pid: int) -> str:
    """Return the command line of a process; empty if it is dead or does not exist."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return ""
    asked = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def clear(server: Server, *, wait: bool) -> bool:
    """Stop a server without users and remove its folder; return whether it had none."""
    with _alone(server.folder / "users", wait=wait) as unused:
        if unused:
            server.stop()
            server.remove()
        return unused


def clear_forgotten(beside: Path, programs: Path, user: str | None) -> None:
    """Remove what killed keepers have left; servers in use are not touched."""
    mine = {os.geteuid(), *([pwd.getpwnam(user).pw_uid] if user else [])}
    for folder in beside.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # Other keepers remove folders, too.
            if folder != beside and folder.lstat().st_uid in mine:
                clear(Server(folder, programs, user), wait=False)


# --- the program --------------------------------------------------------------------------------


def main(folder: Path, programs: Path, user: str | None) -> int:
    """Print the URL of the server, and keep it in the background."""
    server = Server(folder, programs, user)
    ready, tell = os.pipe()
    if os.fork():
        os.close(tell)
        with os.fdopen(ready) as heard:
            failure = heard.read()
        print(failure or server.url)  # noqa: T201 - what it is for
        return 1 if failure else 0
    os.close(ready)
    _leave_the_terminal()
    with os.fdopen(tell, "w") as telling:
        try:
            keeps = _keep(server)
        except (OSError, RuntimeError) as error:
            telling.write(str(error) or repr(error))
            keeps = True
    if keeps:
        clear(server, wait=True)
        clear_forgotten(folder, programs, user)
    return 0


def _leave_the_terminal() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.chdir("/")


def _keep(server: Server) -> bool:
    """Become the keeper of a server and create it, or wait until another keeper has."""
    made = server.folder / "made"
    keeper = os.open(server.folder / "keeper", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        until = time.monotonic() + _PATIENCE
        while not made.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"no server came up in {server.folder}") from None
            time.sleep(0.02)
        return False
    os.truncate(keeper, 0)
    os.write(keeper, str(os.getpid()).encode())
    if not made.exists():  # The previous keeper may have been killed.
        server.make()
        made.touch()
    return True


if __name__ == "__main__":
    place, where, *who = sys.argv[1:]
    sys.exit(main(Path(place), Path(where), who[0] if who else None))
