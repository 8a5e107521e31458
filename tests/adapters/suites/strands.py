"""The tests of Strands' session manager, with its repositories swapped for ours.

All of them must pass. They are those of the version that is installed, from its sdist. What the
manager is given in them (the fixture of its tests, and its file manager) is swapped before they are
collected; their `conftest`, which prepares only fakes of AWS, is not loaded.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from tests.adapters.environment import surroundings
from tests.adapters.suites.result import SuiteResult

TESTS: Final = "tests/strands/session/test_repository_session_manager.py"
_PACKAGE: Final = "strands-agents"
_VERSION: Final = f"import importlib.metadata as m; print(m.version({_PACKAGE!r}))"
_PLUGIN: Final = """
from pathlib import Path

from strands.session import file_session_manager
from strands.session.repository_session_manager import RepositorySessionManager
from tests.fixtures import mock_session_repository

import holdfast
from holdfast.adapters.strands import HoldfastSessionRepository


class Repository(HoldfastSessionRepository):
    def __init__(self):
        super().__init__(holdfast.open("memory:"))


class Manager(RepositorySessionManager):
    def __init__(self, session_id, storage_dir):
        store = holdfast.open(Path(storage_dir) / "agent.db", durability="process")
        super().__init__(session_id, HoldfastSessionRepository(store))


mock_session_repository.MockedSessionRepository = Repository
file_session_manager.FileSessionManager = Manager
"""


def run(python: Path, folder: Path) -> SuiteResult:
    """Run the tests in a folder, with the interpreter of an environment that has Strands."""
    source = _unpacked(python, folder)
    (folder / "holdfast_swap.py").write_text(_PLUGIN)
    bad, total = _failed(python, folder, source, "-p", "holdfast_swap")
    own, _ = _failed(python, folder, source)
    return SuiteResult(
        passed=total - len(bad),
        total=total,
        unexpected=bad,
        name="session tests of its managers",
        own=total - len(own),
    )


def _failed(python: Path, folder: Path, source: Path, *options: str) -> tuple[tuple[str, ...], int]:
    """Run the tests; return the names of those that did not pass, and how many there are."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    variables = surroundings(folder)
    path = os.pathsep.join([str(folder), str(source), variables["PYTHONPATH"]])
    settings = ("--noconftest", "-o", "asyncio_mode=auto", f"--junitxml={report}")
    done = subprocess.run(
        [python, "-m", "pytest", "-c", os.devnull, *settings, *options, TESTS],
        cwd=source,
        env={**variables, "PYTHONPATH": path, "AWS_DEFAULT_REGION": "us-west-2"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(done.stdout[-5_000:] + done.stderr[-5_000:])
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - pytest wrote it
    return tuple(case.attrib["name"] for case in cases if len(case)), len(cases)


def _unpacked(python: Path, folder: Path) -> Path:
    """Download the sdist of the installed version, and return the folder of its source."""
    version = subprocess.run(
        [python, "-c", _VERSION], capture_output=True, text=True, check=True
    ).stdout.strip()
    name = f"{_PACKAGE}=={version}"
    pip = (str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder))
    subprocess.run([*pip, f"--no-binary={_PACKAGE}", name], check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist.with_name(sdist.name.removesuffix(".tar.gz"))
