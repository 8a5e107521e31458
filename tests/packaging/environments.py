"""Virtual environments with nothing in them but the wheel and what it requires.

What several tests use is made once per run, by the first process. Packages come from pip's index;
where that cannot be reached, the tests are skipped. On the oldest Python the lowest allowed version
of each dependency is installed: the newest ones are what all other tests run with.
"""

import fcntl
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pytest

from tools.frameworks import FRAMEWORKS

ROOT: Final = Path(__file__).resolve().parents[2]
_FLOOR: Final = re.compile(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)")
_OLDEST: Final = (3, 11)


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def floors() -> list[str]:
    """Return constraints that allow the lowest version of each dependency only.

    Those of frameworks are other projects' agents, with requirements of their own.
    """
    extras = project()["optional-dependencies"]
    unpinned = {"dev", *(framework.name.replace("_", "-") for framework in FRAMEWORKS)}
    own = [line for name, lines in extras.items() if name not in unpinned for line in lines]
    found = [_FLOOR.match(line) for line in [*project()["dependencies"], *own]]
    return [f"{name}=={version}" for name, version in (match.groups() for match in found if match)]


@contextmanager
def making(folder: Path) -> Iterator[bool]:
    """Yield whether a folder has yet to be filled; other processes wait until it is."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (folder / "made").exists()
        (folder / "made").touch()


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree; return its path."""
    with making(folder) as needed:
        if needed:
            pip(folder, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def borrow(folder: Path, *names: str) -> None:
    """Link distributions that are installed here into a folder for `PYTHONPATH`."""
    for found in map(distribution, names):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(str(found.locate_file(top)))


def pip(folder: Path, *arguments: str) -> None:
    """Run pip; skip the test if it fails because there is no index to install from."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    ran = _run([*command, *arguments], folder, {})
    if ran.returncode == 0:
        return
    probe = _run([*command, "download", "--no-deps", "--dest", str(folder), "mdurl"], folder, {})
    if probe.returncode != 0:
        pytest.skip("there is no index here to install packages from")
    pytest.fail(f"pip {' '.join(arguments)}:\n{ran.stdout}{ran.stderr}")


def _run(
    command: Sequence[str], folder: Path, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    # Nothing of this run: neither its modules nor its test options.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST_"))}
    return subprocess.run(
        command, cwd=folder, env={**kept, **environ}, capture_output=True, text=True, check=False
    )


class Environment:
    """A virtual environment with the wheel, without pip; commands run in its folder."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self._folder = folder
        self._programs = folder / "venv" / "bin"
        with making(folder) as needed:
            if needed:
                self._install(f"{wheel}[{extra}]" if extra else str(wheel))

    def _install(self, wanted: str) -> None:
        venv.create(self._folder / "venv", symlinks=True)
        lowest = self._folder / "floors.txt"
        lowest.write_text("\n".join(floors() if sys.version_info[:2] == _OLDEST else []))
        here = ["--python", str(self._programs / "python")]
        pip(self._folder, *here, "install", "--no-compile", "--constraint", str(lowest), wanted)
        pip(self._folder, *here, "check")

    def distributions(self) -> list[str]:
        """Return the names of what is installed."""
        code = "from importlib.metadata import distributions as d; print(*{x.name for x in d()})"
        return sorted(self.python(code).split())

    def python(self, code: str) -> str:
        """Run a program in this environment; return what it prints."""
        ran = self.run("python", "-I", "-c", code)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def run(
        self, program: str, *arguments: str, folder: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment."""
        command = [str(self._programs / program), *arguments]
        return _run(command, folder or self._folder, environ)
