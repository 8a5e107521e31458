"""On stderr is only what a program printed: no notice of the server, no warning of the driver."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.servers import WORKER
from tests.store_urls import with_options

_PATIENCE_S = 90
_CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'quiet' AND datname = current_database()
"""
# A version that is not the library's makes the server warn each connection at its beginning.
_COLLATION = "UPDATE pg_database SET datcollversion = %s WHERE datname = current_database()"
# It is told to go on by lines of its input.
_PROGRAM = """
import sys
import holdfast
from holdfast import Message

with holdfast.open(sys.argv[1], durability="process") as store:
    session = store.session("k")
    seen = store.backend.wait(-1, 0)
    session.append(Message.user("before"))
    store.search("before")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(3):
        session.append(Message.user(str(number)))
    seen = store.backend.wait(seen, 0.1)
    store.search("before")
    assert len(session.messages()) == 4
print("done", flush=True)
"""


def _run(url: str, admin: psycopg.Connection) -> tuple[str, str]:
    """Run the program, cut all its connections in the middle, and return what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, with_options(url, application_name="quiet")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        ready = program.stdout.readline()
        admin.execute(_CUT)
        try:
            out, err = program.communicate("go on\n", timeout=_PATIENCE_S)
        finally:
            program.kill()
    return ready + out, err


@contextmanager
def _talkative(admin: psycopg.Connection) -> Iterator[None]:
    """Let the server say all it can say, and warn each connection of its database."""
    admin.execute(f"ALTER ROLE {WORKER} SET client_min_messages = 'debug5'")
    admin.execute(_COLLATION, ("another",))
    try:
        yield
    finally:
        admin.execute(_COLLATION, (None,))
        admin.execute(f"ALTER ROLE {WORKER} RESET client_min_messages")


def test_a_program_whose_connections_are_cut_prints_nothing_of_it(
    url: str, postgres_admin: psycopg.Connection
) -> None:
    """They are opened again; its listener, too."""
    assert _run(url, postgres_admin) == ("ready\ndone\n", "")


def test_what_the_server_says_is_not_printed(url: str, postgres_admin: psycopg.Connection) -> None:
    """Neither notices nor warnings, from the first one of a connection on."""
    with _talkative(postgres_admin):
        assert _run(url, postgres_admin) == ("ready\ndone\n", "")


def test_warnings_of_the_driver_go_to_the_programs_handlers() -> None:
    """Without one they go nowhere: the interpreter would print them."""
    program = (
        "import logging, sys, holdfast.storage.postgres.connection\n"
        "logging.getLogger('psycopg').warning('unheard')\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "logging.getLogger('psycopg').warning('heard')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("heard\n", "")


@pytest.mark.parametrize("place", ["127.0.0.1:1,127.0.0.1:2", "/nowhere:1"])
def test_a_server_that_is_not_there_is_one_line(place: str) -> None:
    """The error of the command, and nothing of the driver's."""
    host, _, port = place.rpartition(":")
    url = f"postgresql:///d?host={host.replace(':1', '')}&port={'1,2' if ',' in place else port}"
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "ls", "--store", with_options(url, deadline=2)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 5
    assert ran.stderr.startswith("holdfast: ")
    assert "cannot be reached" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "psycopg" not in ran.stderr
