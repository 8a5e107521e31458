"""Apply every mutant, and check that the tests it names fail.

`make mutants` runs all of them, `make mutants ARGS="drafts"` those of one list, and
`ARGS="-k close"` those whose names contain a text. `--tests PATH` runs other tests in place of the
named ones, to find out what a part of the suite detects; `--list` prints the mutants.

The product and its tests are copied to a temporary folder for each worker process, and
the copies are edited: the tree itself is never changed. The exit code is 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tools.mutants.edits import ROOT, Mutant, areas, edited, load

_COPIED = ("src", "tests", "bench", "docs", "tools", "pyproject.toml", "README.md", "Makefile")
_PASSED, _FAILED = 0, 1
_SECONDS = 900
_HUNG = "--timeout=120"  # A mutant that makes a test hang counts as killed.


class Workspace:
    """A copy of the tree in which one mutant at a time is tested."""

    def __init__(self, folder: Path) -> None:
        """Copy the tree."""
        self._folder = folder
        self._changes = 0
        skip = shutil.ignore_patterns("__pycache__", "*.db*")
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=skip)
            elif source.exists():
                shutil.copy(source, folder / name)

    def fails(self, mutant: Mutant, tests: Sequence[str]) -> tuple[bool, str]:
        """Return whether the tests detect the mutant, and what they printed."""
        path, text = edited(mutant)
        target = self._folder / path
        healthy = target.read_text()
        try:
            self._write(target, text)
            return self._run(tests)
        finally:
            self._write(target, healthy)

    def passes(self, tests: Sequence[str]) -> tuple[bool, str]:
        """True if the tests pass without a mutant."""
        failed, printed = self._run(tests)
        return not failed, printed

    def _write(self, target: Path, text: str) -> None:
        """Write a module with a new modification time, so that no stale compiled file is used."""
        target.write_text(text)
        self._changes += 1
        stamp = time.time() + self._changes
        os.utime(target, (stamp, stamp))

    def _run(self, tests: Sequence[str]) -> tuple[bool, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", _HUNG, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src")}
        try:
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider"],
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True, f"not finished within {_SECONDS} s"
        if done.returncode not in {_PASSED, _FAILED}:
            raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}")
        return done.returncode == _FAILED, done.stdout


def main(arguments: Sequence[str]) -> int:
    """Test the selected mutants; return the exit code."""
    options = _options(arguments)
    chosen = [
        mutant
        for area in options.areas or areas()
        for mutant in load(area)
        if options.k.lower() in mutant.name.lower()
    ]
    if not chosen:
        print("no mutant matches; --list prints them", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name}  ({mutant.function or mutant.file})")
        return 0
    return _try(chosen, options.tests, options.jobs, verbose=options.verbose)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description="Apply small edits that remove a guard, and check that tests fail.",
    )
    parser.add_argument("areas", nargs="*", metavar="LIST", help=f"of {', '.join(areas())}")
    parser.add_argument("-k", default="", metavar="TEXT", help="only mutants with this in the name")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these tests instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--list", action="store_true", help="print the mutants and exit")
    parser.add_argument("--verbose", action="store_true", help="print what the tests printed")
    return parser.parse_args(arguments)


def _try(chosen: Sequence[Mutant], tests: Sequence[str], jobs: int, *, verbose: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Workspace] = SimpleQueue()
        for number in range(jobs):
            copy = Path(folder, str(number))
            copy.mkdir()
            free.put(Workspace(copy))
        first = free.get()
        healthy, printed = first.passes(tests or _named(chosen))
        free.put(first)
        if not healthy:
            print(printed, file=sys.stderr)
            print("the tests fail without any mutant; no mutant was tested", file=sys.stderr)
            return 2

        def attempt(mutant: Mutant) -> bool:
            workspace = free.get()
            began = time.monotonic()
            try:
                killed, printed = workspace.fails(mutant, tests or mutant.tests)
            finally:
                free.put(workspace)
            verdict = "killed  " if killed else "SURVIVED"
            print(f"{verdict} {time.monotonic() - began:6.1f} s  {mutant.name}", flush=True)
            if verbose or not killed:
                print(printed, flush=True)
            return killed

        with ThreadPoolExecutor(jobs) as pool:
            killed = sum(pool.map(attempt, chosen))
    print(f"{killed} of {len(chosen)} mutants were killed")
    return 0 if killed == len(chosen) else 1


def _named(chosen: Iterable[Mutant]) -> list[str]:
    """Return the tests that the mutants name, each once."""
    return sorted({test for mutant in chosen for test in mutant.tests})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
