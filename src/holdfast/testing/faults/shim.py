"""Run a child process in which the Nth write or the Nth sync fails.

`shim.c` (its own comment lists the faults) is compiled into a shared library and loaded into the
child with LD_PRELOAD; it counts the writes and syncs on files under a path and injects a fault at
one of them. `Shim.run` is one run; `every` is one run for each N until a run ends without reaching
the fault, so that no operation is left out. Linux with a C compiler only: elsewhere `Shim.build`
raises `ShimUnavailable`, whose message is the reason for skipping.

Not intercepted: writes through mapped memory, and programs that make system calls directly.

    shim = Shim.build()
    for outcome in every(shim, child, kind="kill", on="sync", under=tmp_path):
        ...  # check outcome.directory; on a failure print outcome.command
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import platformdirs

FaultKind = Literal["none", "kill", "kill_after", "tear", "eio", "enospc", "short"]
ShimOperation = Literal["write", "sync"]

_REPORT = struct.Struct("=QQQ")
_COMPILER_FLAGS = ("-std=gnu11", "-O1", "-shared", "-fPIC")


class ShimUnavailable(Exception):
    """Faults cannot be injected here; the message says why."""


class ChildHung(Exception):
    """A child did not end in time; the message ends with the command that replays it."""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    at: int
    directory: Path
    """The path prefix of the files that can fail."""
    returncode: int
    reached: bool
    """True if there was an Nth operation, and so a fault."""
    writes: int
    syncs: int
    stdout: str
    stderr: str
    command: str
    """A shell command that repeats the run in an empty directory."""

    @property
    def killed(self) -> bool:
        """True if the child was ended by a signal."""
        return self.returncode < 0


@dataclass(frozen=True)
class Shim:
    """The compiled library."""

    library: Path

    @classmethod
    def build(cls, directory: Path | None = None) -> Shim:
        """Compile the library, unless it is compiled already; by default in the user's cache."""
        if not sys.platform.startswith("linux"):
            raise ShimUnavailable(f"LD_PRELOAD faults work on Linux only, not on {sys.platform}")
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise ShimUnavailable("there is no C compiler (cc or gcc)")
        where = directory or platformdirs.user_cache_path("holdfast") / "shim"
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(_compiled(compiler, where))

    def run(
        self,
        argv: Sequence[str],
        *,
        kind: FaultKind,
        on: ShimOperation,
        at: int,
        path_prefix: Path,
        sticky: bool = False,
        timeout: float = 60,
    ) -> Outcome:
        """Run a command with one fault in it; `kind="none"` only counts."""
        if on == "sync" and kind in {"tear", "short"}:
            raise ValueError(f"{kind!r} applies to writes only")
        prefix = path_prefix.resolve()
        settings = {
            "LD_PRELOAD": str(self.library),
            "HOLDFAST_FAULT_PATH": str(prefix),
            "HOLDFAST_FAULT_KIND": kind,
            "HOLDFAST_FAULT_ON": on,
            "HOLDFAST_FAULT_AT": str(at),
            "HOLDFAST_FAULT_STICKY": str(int(sticky)),
        }
        command = _replay_command(argv, settings, prefix)
        with tempfile.NamedTemporaryFile(prefix="holdfast-report-") as report:
            report.write(bytes(_REPORT.size))
            report.flush()
            settings["HOLDFAST_FAULT_REPORT"] = report.name
            try:
                ended = self._run(argv, os.environ | settings, timeout)
            except subprocess.TimeoutExpired as error:
                raise ChildHung(f"still running after {timeout} s\nreplay: {command}") from error
            report.seek(0)
            writes, syncs, reached = _REPORT.unpack(report.read(_REPORT.size))
        return Outcome(
            at=at,
            directory=prefix,
            returncode=ended.returncode,
            reached=bool(reached),
            writes=writes,
            syncs=syncs,
            stdout=ended.stdout,
            stderr=ended.stderr,
            command=command,
        )

    def _run(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to completion, with the library loaded; may raise `TimeoutExpired`."""
        return subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )


def every(
    shim: Shim,
    argv_for: Callable[[Path], Sequence[str]],
    *,
    kind: FaultKind,
    on: ShimOperation,
    under: Path,
    sticky: bool = False,
    first: int = 20,
    step: int = 1,
    timeout: float = 60,
) -> Iterator[Outcome]:
    """Run with the fault at operation 1, 2, 3 … until it is not reached; yield that run, too.

    `argv_for` gets a fresh directory below `under` and returns the command to run there. After the
    `first` operations only every `step`-th is tried: 1 tries all.
    """
    for at in itertools.chain(range(1, first + 1), itertools.count(first + step, step)):
        directory = under / f"{kind}-{on}-{at}{'-sticky' if sticky else ''}"
        directory.mkdir(parents=True)
        outcome = shim.run(
            argv_for(directory),
            kind=kind,
            on=on,
            at=at,
            path_prefix=directory,
            sticky=sticky,
            timeout=timeout,
        )
        yield outcome
        if not outcome.reached:
            return


def _compiled(compiler: str, where: Path) -> Path:
    source = resources.files(__package__).joinpath("shim.c").read_bytes()
    digest = hashlib.sha256(source + " ".join((compiler, *_COMPILER_FLAGS)).encode()).hexdigest()[
        :16
    ]
    library = where / f"shim-{digest}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=where) as made:
        code, built = Path(made, "shim.c"), Path(made, "shim.so")
        code.write_bytes(source)
        command = [compiler, *_COMPILER_FLAGS, "-o", str(built), str(code), "-ldl"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ShimUnavailable(f"the shim does not compile: {ended.stderr.strip()}")
        # Renamed atomically: several test processes may be building it at once.
        built.replace(library)
    return library


def _replay_command(argv: Sequence[str], settings: dict[str, str], prefix: Path) -> str:
    """Return a shell command that repeats a run in a new directory, as the child expects it."""
    report = shlex.quote(f"{prefix}.report")
    assigned = shlex.join(f"{name}={value}" for name, value in settings.items())
    words = f"env {assigned} HOLDFAST_FAULT_REPORT={report} {shlex.join(argv)}"
    fresh = f"rm -rf {shlex.quote(str(prefix))}; mkdir -p {shlex.quote(str(prefix))}"
    return f"head -c {_REPORT.size} /dev/zero > {report}; {fresh}; {words}"
