"""The benchmark on PostgreSQL compares like with like, and leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg
import pytest

import holdfast
from bench import by_hand, material
from bench.by_hand import ByHand
from bench.postgres_reads import ReadTarget, search_both
from tests import server_process, servers
from tests.servers import OWNER, as_user
from tests.store_urls import let_the_owner_in, place

_A, _B = UUID(int=1), UUID(int=2)
_LONG = 60.0


@pytest.fixture
def database(postgres_database: str, postgres_admin: psycopg.Connection) -> Iterator[str]:
    """A database with the hand-written tables."""
    let_the_owner_in()
    url = as_user(postgres_database, OWNER)
    by_hand.make(url)
    yield url
    postgres_admin.execute(f"DROP SCHEMA {by_hand.SCHEMA} CASCADE")


def test_what_is_written_by_hand_gives_what_holdfast_gives(database: str, tmp_path: Path) -> None:
    """The same messages, session fields and numbers, also on a retry."""
    turns = [material.turn() for _ in range(20)]
    bodies = [msgspec.json.decode(body) for body in material.bodies()]
    with (
        place("postgres", tmp_path) as url,
        holdfast.open(url) as store,
        ByHand(database, _A) as hand,
    ):
        session, number = store.session("k"), hand.add_session("k")
        for turn in [*turns, turns[-1]]:
            ours = session.append(*turn).seq
            assert hand.append(number, [message.id for message in turn], bodies) == ours
        (info,) = store.sessions().items
        found, messages = hand.resume("k")
        kept = session.messages(limit=by_hand.PAGE)
        assert [message["id"] for message in messages] == [message.id for message in kept]
        assert [message["seq"] for message in messages] == [message.seq for message in kept]
        assert messages[-1]["parts"][0]["text"] == kept[-1].text
        for name in ("state", "messages", "turns", "preview", "scope", "pinned", "trashed"):
            assert found[name] == getattr(info, name), name
        listed, more = hand.page()
        assert ([one["key"] for one in listed], more) == (["k"], False)
        # All fields of a session in a list; usage is given as its sums.
        told = {*msgspec.structs.asdict(info)} - {"usage", "branches"}
        assert told <= set(listed[0])


def test_what_is_written_by_hand_keeps_tenants_apart(database: str) -> None:
    """Enforced by the server: without a tenant, or as another one, no row is visible."""
    with ByHand(database, _A) as mine, ByHand(database, _B) as theirs:
        number = mine.add_session("k")
        assert theirs.session("k") is None
        with pytest.raises(IndexError):
            theirs.append(number, [material.turn()[0].id], [{"role": "user", "parts": []}])
        with pytest.raises(psycopg.Error):
            mine.connection.execute("SELECT * FROM sessions")


def test_what_is_written_by_hand_refuses_another_body_for_an_id(database: str) -> None:
    """As Holdfast does; nothing of the batch is stored."""
    ids = [message.id for message in material.turn()][:2]
    with ByHand(database, _A) as hand:
        number = hand.add_session("k")
        hand.append(number, ids[:1], [{"role": "user", "parts": []}])
        with pytest.raises(psycopg.errors.UniqueViolation):
            hand.append(number, ids, [{"role": "tool", "parts": []}] * 2)
        session, messages = hand.resume("k")
        assert (session["messages"], len(messages)) == (1, 1)


def test_what_is_found_by_hand_is_found(database: str, tmp_path: Path) -> None:
    """The rankings differ, and Holdfast also matches words within names in code."""
    answered = 0
    with place("postgres", tmp_path) as url:
        for question, ours, theirs in search_both(ReadTarget(url, database, lambda: None), 200, _A):
            found = {row["title"] for row in theirs}
            assert found <= {hit.title for hit in ours.items}, question
            answered += bool(found)
    assert answered > 30


def _until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + _LONG
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def _postmaster(folder: Path) -> int:
    """Wait for the server of a run to be ready; return its process id."""
    path = Path()

    def ready() -> bool:
        nonlocal path
        for path in folder.glob("*/postgres-*/postmaster.pid"):
            return "ready" in path.read_text()
        return False

    _until(ready)
    return int(path.read_text().split("\n", 1)[0])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for a run: with the other servers, so that it does not wait for a slow disk."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=servers.place()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    "ended_by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_run_that_is_ended_leaves_nothing_behind(folder: Path, ended_by: signal.Signals) -> None:
    """No server and no folder; here it is ended as soon as its server has started."""
    command = [sys.executable, "-m", "bench", "--quick", "--dir", str(folder), "postgres"]
    surroundings = {k: v for k, v in os.environ.items() if k != "HOLDFAST_BENCH_POSTGRES"}
    run = subprocess.Popen(
        command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        server = _postmaster(folder)
        run.send_signal(ended_by)
        assert run.wait(_LONG) != 0
    finally:
        run.kill()
        run.wait()
    _until(lambda: not server_process.command(server))
    assert list(folder.iterdir()) == []
