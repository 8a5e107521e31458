"""The tests of sessions that the Claude Agent SDK publishes, with its store in memory replaced.

They are those of its source distribution that use `InMemorySessionStore`; each test has a new store
in a file. What the class offers to tests alone (`get_entries`, `size`, `clear`) is made here of
what the adapter offers.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests.adapters.environment import surroundings
from tests.adapters.suites.result import SuiteResult

_PACKAGE: Final = "claude-agent-sdk"
_FILES: Final = (
    "test_session_helpers_store.py",
    "test_session_import.py",
    "test_session_resume.py",
    "test_session_store_conformance.py",
    "test_session_summary.py",
    "test_transcript_mirror.py",
)
_TIMEOUT_S: Final = 900

_PLUGIN: Final = """
import asyncio
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import claude_agent_sdk
import holdfast
from claude_agent_sdk._internal import session_store
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

FOLDER = os.environ["HOLDFAST_SUITE_FOLDER"]


class Replacement(HoldfastSessionStore):
    def __init__(self):
        self.clear()

    def clear(self):
        path = os.path.join(tempfile.mkdtemp(dir=FOLDER), "agent.db")
        super().__init__(holdfast.open(path, durability="process"))

    def get_entries(self, key):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, self.load(key)).result() or []

    @property
    def size(self):
        found = self._store.sessions(delegates=False, limit=1000)
        return sum(info.messages > 0 or bool(info.metadata) for info in found)


claude_agent_sdk.InMemorySessionStore = Replacement
session_store.InMemorySessionStore = Replacement
"""

_PRIVATE: Final = "sets `_mtimes`, a private dict of the store in memory"
_INSTANT: Final = "lets other tasks run a few times and expects the store's I/O to be over by then"
# The last ones may pass: they depend on how quick the machine is.
_BOTH_BACKENDS: Final = {
    "resume.TestHappyPath::test_continue_picks_most_recent": _PRIVATE,
    "resume.TestHappyPath::test_continue_skips_sidechain_sessions": _PRIVATE,
    "resume.TestHappyPath::test_continue_tie_break_is_deterministic": _PRIVATE,
    "helpers_store.TestListSessionsFromStore::test_load_concurrency_is_bounded": _INSTANT,
    "resume.TestTimeoutsAndErrors::test_cancelled_after_mkdtemp_cleans_temp_dir": _INSTANT,
    "summary.TestListSessionsFromStoreFastPath::test_gap_fill_bounded_concurrency": _INSTANT,
}
EXPECTED_FAILURES: Final[dict[str, str]] = {
    f"tests.test_session_{name}[{backend}]": reason
    for name, reason in _BOTH_BACKENDS.items()
    for backend in ("asyncio", "trio")
} | {
    "tests.test_transcript_mirror.TestReceiveLoopFramePeeling::"
    "test_eager_flush_mode_appends_per_frame_before_result": _INSTANT,
}


def run(python: Path, folder: Path) -> SuiteResult:
    """Return what the SDK's tests of sessions find in the adapter; `folder` is empty."""
    tests = _unpacked(python, folder) / "tests"
    (folder / "stores").mkdir()
    (folder / "holdfast_replacement.py").write_text(_PLUGIN)
    cases, failed = _run_tests(python, tests, folder, "-p", "holdfast_replacement")
    own_cases, own_failed = _run_tests(python, tests, folder)
    return SuiteResult(
        name=f"session tests, {len(_FILES)} files",
        passed=cases - len(failed),
        total=cases,
        own=own_cases - len(own_failed),
        expected_failures={name: EXPECTED_FAILURES[name] for name in failed & {*EXPECTED_FAILURES}},
        unexpected=tuple(sorted(failed - {*EXPECTED_FAILURES})),
    )


def _run_tests(python: Path, tests: Path, folder: Path, *options: str) -> tuple[int, set[str]]:
    """Return how many tests there are, and the names of those that did not pass."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    variables = surroundings(folder)
    path = os.pathsep.join((variables["PYTHONPATH"], str(folder)))
    plugins = ("-p", "no:asyncio", "-p", "no:cacheprovider", *options)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *plugins, f"--junitxml={report}", *_FILES],
        cwd=tests,
        env={**variables, "PYTHONPATH": path, "HOLDFAST_SUITE_FOLDER": str(folder / "stores")},
        capture_output=True,
        text=True,
        check=False,  # the report says what failed
        timeout=_TIMEOUT_S,
    )
    if not report.exists():
        raise RuntimeError(done.stdout[-5_000:] + done.stderr[-5_000:])
    cases = [*ET.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it
    failed = {f"{case.get('classname')}::{case.get('name')}" for case in cases if _is_bad(case)}
    return len(cases), failed


def _is_bad(case: ET.Element) -> bool:
    return any(case.find(outcome) is not None for outcome in ("failure", "error", "skipped"))


def _unpacked(python: Path, folder: Path) -> Path:
    """Return the source distribution of the version that is installed."""
    code = f"import importlib.metadata as m; print(m.version({_PACKAGE!r}))"
    shown = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    wanted = f"{_PACKAGE}=={shown.stdout.strip()}"
    options = ("--quiet", "--no-deps", f"--no-binary={_PACKAGE}", "-d", str(folder))
    subprocess.run([python, "-m", "pip", "download", *options, wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")
