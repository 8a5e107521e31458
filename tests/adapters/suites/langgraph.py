"""LangGraph's own tests: those that it publishes for savers, and those of its engine.

The engine's tests are in its source distribution. Each that runs on a saver runs on a
`HoldfastSaver` in its place: once as it is, and once with a serializer that encrypts, where it has
one. They need more packages than the adapter's tests, so they have an environment of their own.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.adapters.suites.result import SuiteResult
from tools.environments import environments_directory, interpreter

VERSION: Final = "1.2.11"
ROOT: Final = Path(__file__).parents[3]
_CONFORMANCE_TESTS: Final = 81
_TIMEOUT_S: Final = 1_800
_PACKAGES: Final = (
    "apsw==3.54.1.0",
    "msgspec==0.22.0",
    "platformdirs==4.14.5",
    "pytest==9.2.0",
    f"langgraph=={VERSION}",
    "langgraph-checkpoint-postgres==3.1.1",
    "langgraph-checkpoint-sqlite==3.1.2",
    "psycopg[binary]",
    "pycryptodome",
    "pyperf",
    "pytest-dotenv",
    "pytest-mock",
    "pytest-repeat",
    "redis",
    "syrupy",
    "uvloop",
)

_CONFORMANCE: Final = """
import asyncio, json, sys
import holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver

@checkpointer_test(name="saver")
async def saver():
    with holdfast.open(sys.argv[1], durability="process") as store:
        yield HoldfastSaver(store) if sys.argv[2] == "ours" else InMemorySaver()

report = asyncio.run(validate(saver))
results = report.results.values()
json.dump(
    {
        "passed": sum(result.tests_passed for result in results),
        "failed": [name for result in results for name in result.failures or ()],
    },
    sys.stdout,
)
"""

# Behind its own: the last definition of a name counts.
_SAVERS: Final = """

import tempfile

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver


@contextmanager
def _checkpointer_memory():
    with tempfile.TemporaryDirectory() as folder:
        with holdfast.open(os.path.join(folder, "agent.db"), durability="process") as store:
            saver = HoldfastSaver(store)
            _apply_strict_msgpack(saver)
            yield saver


@contextmanager
def _checkpointer_sqlite_aes():
    with _checkpointer_memory() as saver:
        saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456")
        yield saver
"""

# Only tests with a saver count, and of those with several, the ones whose savers were swapped.
_PLUGIN: Final = """
import json
import os

FIXTURES = ("sync_checkpointer", "async_checkpointer")
outcomes = {}


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if _saver(item) in os.environ["SAVERS"].split()]


def _saver(item):
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return next((parameters[name] for name in FIXTURES if name in parameters), None)


def pytest_runtest_logreport(report):
    if report.failed or (report.when == "call" and outcomes.get(report.nodeid) != "failed"):
        outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report):
    if report.failed:
        outcomes[report.nodeid] = "failed"


def pytest_sessionfinish():
    with open("outcomes.json", "w") as file:
        json.dump(outcomes, file)
"""


class _Conformance(msgspec.Struct):
    passed: int
    failed: list[str]


def run(python: Path, folder: Path) -> SuiteResult:
    """Run both in a folder; `own` is with the engine's own savers, and the one in memory.

    That one has not all of the abilities that the published tests are for.
    """
    conformance = _run_conformance(python, folder, "ours")
    engine = interpreter("langgraph-suite", _PACKAGES, environments_directory())
    source = _download(python, folder)
    own = _outcomes(engine, source)
    with (source / "tests" / "conftest_checkpointer.py").open("a") as file:
        file.write(_SAVERS)
    outcomes = _outcomes(engine, source)
    failed = sorted(name for name, outcome in outcomes.items() if outcome == "failed")
    passed = _passed(outcomes)
    return SuiteResult(
        passed=conformance.passed + passed,
        total=_CONFORMANCE_TESTS + passed + len(failed),
        unexpected=(*conformance.failed, *failed),
        name=f"langgraph-checkpoint-conformance, and engine tests of langgraph {VERSION}",
        own=_run_conformance(python, folder, "own").passed + _passed(own),
    )


def _run_conformance(python: Path, folder: Path, saver: str) -> _Conformance:
    path = str(folder / "conformance.db")
    ended = subprocess.run(
        [str(python), "-c", _CONFORMANCE, path, saver],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return msgspec.json.decode(ended.stdout, type=_Conformance)


def _download(python: Path, folder: Path) -> Path:
    """Return the folder of the tests of the source distribution, without its package."""
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "download")
    options = ("--no-deps", "--no-binary=langgraph", "--dest", str(folder))
    subprocess.run([*pip, *options, f"langgraph=={VERSION}"], check=True, timeout=_TIMEOUT_S)
    with tarfile.open(folder / f"langgraph-{VERSION}.tar.gz") as archive:
        tests: Sequence[tarfile.TarInfo] = [
            member for member in archive if "/tests/" in member.name
        ]
        archive.extractall(folder, tests, filter="data")
    return folder / f"langgraph-{VERSION}"


def _outcomes(python: Path, source: Path) -> dict[str, str]:
    """Run the tests with two savers and return the outcome of each by its name."""
    found = source / "outcomes.json"
    found.unlink(missing_ok=True)
    (source / "counted_outcomes.py").write_text(_PLUGIN)
    options = ("-q", "-p", "no:cacheprovider", "-p", "counted_outcomes")
    ended = subprocess.run(
        [str(python), "-m", "pytest", *options, "tests"],
        cwd=source,
        env={
            **os.environ,
            "NO_DOCKER": "true",
            "PYTHONPATH": os.pathsep.join((str(source), str(ROOT / "src"))),
            "SAVERS": "memory sqlite_aes",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if not found.exists():
        raise RuntimeError(ended.stdout[-5_000:] + ended.stderr[-5_000:])
    return msgspec.json.decode(found.read_bytes(), type=dict[str, str])


def _passed(outcomes: dict[str, str]) -> int:
    return sum(outcome == "passed" for outcome in outcomes.values())
