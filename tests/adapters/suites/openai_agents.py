"""The tests that OpenAI Agents has for its sessions, with its class swapped for the adapter's.

They come with its source distribution. A plugin puts a class of the same name, with the same
arguments, in the place of `SQLiteSession` before they are collected. `EncryptedSession` keeps its
own idea of that class: outside of these tests it never takes the adapter for one.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import msgspec

from tests.adapters.suites.result import SuiteResult

VERSION: Final = "0.24.0"
ROOT: Final = Path(__file__).parents[3]
FOLDERS: Final = ("tests/memory", "tests/extensions/memory/test_encrypt_session.py")
_TIMEOUT_S: Final = 600

PLUGIN: Final = """
import json
import os

import agents.extensions.memory.encrypt_session
import agents.memory.sqlite_session

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession

outcomes = {}


class SQLiteSession(HoldfastSession):
    def __init__(
        self, session_id, db_path=":memory:", sessions_table=None, messages_table=None,
        session_settings=None,
    ):
        self.db_path = db_path
        url = "memory:" if str(db_path) == ":memory:" else str(db_path)
        self.opened = holdfast.open(url, durability="process")
        super().__init__(session_id, self.opened, session_settings=session_settings)

    def close(self):
        self.opened.close()


if os.environ.get("SWAPPED"):
    agents.memory.sqlite_session.SQLiteSession = SQLiteSession


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        outcomes[report.nodeid.removeprefix("tests/")] = report.outcome


def pytest_collectreport(report):
    if report.failed:
        outcomes[report.nodeid] = "failed"


def pytest_sessionfinish():
    with open("outcomes.json", "w") as file:
        json.dump(outcomes, file)
"""

TABLES: Final = "writes into the SQL tables of SQLiteSession"
CONNECTIONS: Final = "replaces or counts the sqlite3 connections of SQLiteSession"
LOCKS: Final = "looks at the locks that SQLiteSession has for its file"
INSERT: Final = "replaces the method of SQLiteSession that inserts rows"
CLOSED: Final = "expects the error of a closed SQLiteSession; here the caller closes the store"
NATIVE_POP: Final = "EncryptedSession authenticates before a pop only with SQLiteSession itself"

_SESSION: Final = "memory/test_session.py::test_sqlite_session_"
_SUFFIX: Final = "memory/test_compaction_suffix.py::test_"
_CLASS: Final = "TestOpenAIResponsesCompactionSession"
_COMPACTION: Final = f"memory/test_openai_responses_compaction_session.py::{_CLASS}::test_"
_POP: Final = "extensions/memory/test_encrypt_session.py::test_encrypted_pop_"
_CANCELLED: Final = f"{_SESSION}post_commit_cancellation_propagates_after_known_outcome"
_TOKENS: Final = f"{_SUFFIX}failed_encrypted_suffix_transaction_preserves_original_tokens"

EXPECTED_FAILURES: Final = {
    f"{_SUFFIX}suffix_transaction_rolls_back_failed_insert[sqlite]": TABLES,
    f"{_SUFFIX}cancelled_suffix_transaction_settles_before_newer_append[sqlite]": INSERT,
    f"{_TOKENS}[sqlite-False]": TABLES,
    f"{_TOKENS}[sqlite-True]": TABLES,
    f"{_COMPACTION}settled_pop_failure_invalidates_response_chain[cancelled]": CONNECTIONS,
    f"{_COMPACTION}settled_pop_failure_invalidates_response_chain[error]": CONNECTIONS,
    f"{_COMPACTION}settled_clear_failure_invalidates_response_chain[cancelled]": CONNECTIONS,
    f"{_COMPACTION}settled_clear_failure_invalidates_response_chain[error]": CONNECTIONS,
    f"{_SESSION}close_closes_worker_thread_connections": CONNECTIONS,
    f"{_SESSION}reaps_connections_from_exited_worker_threads": CONNECTIONS,
    f"{_SESSION}closes_retired_connections_before_the_next_allocation": CONNECTIONS,
    f"{_SESSION}keeps_connections_of_live_worker_threads": CONNECTIONS,
    f"{_SESSION}closed_rejects_empty_add_items": CLOSED,
    f"{_SESSION}pop_item_skips_corrupt_most_recent": TABLES,
    f"{_SESSION}pop_item_returns_none_after_dropping_only_corrupt_rows": TABLES,
    f"{_SESSION}get_items_limit_skips_corrupt_newest_rows": TABLES,
    f"{_SESSION}get_items_session_settings_limit_skips_corrupt_rows": TABLES,
    f"{_SESSION}file_lock_is_shared_across_instances": LOCKS,
    f"{_SESSION}failed_add_items_releases_write_lock": TABLES,
    f"{_SESSION}failed_clear_session_rolls_back": TABLES,
    f"{_SESSION}failed_pop_item_releases_write_lock": TABLES,
    f"{_SESSION}rollback_failure_evicts_connection": CONNECTIONS,
    f"{_SESSION}close_retries_quarantined_connection": CONNECTIONS,
    f"{_CANCELLED}[add]": CONNECTIONS,
    f"{_CANCELLED}[pop]": CONNECTIONS,
    f"{_CANCELLED}[clear]": CONNECTIONS,
    f"{_POP}wrong_key_preserves_recoverable_history[False]": NATIVE_POP,
    f"{_POP}wrong_key_preserves_recoverable_history[True]": NATIVE_POP,
    f"{_POP}rechecks_authentication_after_expired_tail": NATIVE_POP,
    f"{_POP}authentication_is_atomic_with_concurrent_mutations[append]": TABLES,
    f"{_POP}authentication_is_atomic_with_concurrent_mutations[clear]": TABLES,
    f"{_POP}wrong_key_preserves_row_identity": TABLES,
    f"{_POP}cancellation_waits_for_authentication_rollback": NATIVE_POP,
}


def run(python: Path, folder: Path) -> SuiteResult:
    """Run its tests in a folder, with its own session and with the adapter's."""
    source = _download(python, folder)
    (source / "plugin").mkdir(exist_ok=True)
    (source / "plugin" / "swapped_session.py").write_text(PLUGIN)
    own = _outcomes(python, source, swapped=False)
    outcomes = _outcomes(python, source, swapped=True)
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    listed = EXPECTED_FAILURES.keys()
    return SuiteResult(
        passed=_count(outcomes, "passed"),
        total=_count(outcomes, "passed") + len(failed),
        expected_failures={name: EXPECTED_FAILURES[name] for name in sorted(failed & listed)},
        unexpected=(
            *sorted(failed - listed),
            *(f"passes although it is listed: {name}" for name in sorted(listed - failed)),
        ),
        name="session tests",
        own=_count(own, "passed"),
    )


def _count(outcomes: dict[str, str], wanted: str) -> int:
    return sum(outcome == wanted for outcome in outcomes.values())


def _download(python: Path, folder: Path) -> Path:
    """Return the folder of the unpacked source distribution."""
    package = f"openai-agents=={VERSION}"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    options = ["--no-deps", "--no-binary=openai-agents", "--dest", str(folder)]
    subprocess.run([*pip, *options, package], check=True, timeout=_TIMEOUT_S)
    with tarfile.open(folder / f"openai_agents-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"openai_agents-{VERSION}"


def _outcomes(python: Path, source: Path, *, swapped: bool) -> dict[str, str]:
    """Run the tests and return the outcome of each by its name."""
    found = source / "outcomes.json"
    found.unlink(missing_ok=True)
    paths = [str(source), str(source / "plugin"), str(ROOT / "src")]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "swapped_session"]
    ended = subprocess.run(
        [*command, *FOLDERS],
        cwd=source,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "SWAPPED": "1" if swapped else "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if not found.exists():
        raise RuntimeError(ended.stdout[-5_000:] + ended.stderr[-5_000:])
    return msgspec.json.decode(found.read_bytes(), type=dict[str, str])
