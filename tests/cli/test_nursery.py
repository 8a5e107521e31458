"""A command from the nursery is the command: what an interpreter of its own does, it does."""

import os
from pathlib import Path

import pytest

from tests.cli.nursery import PIPE_HOLDS
from tests.cli.shell import Shell


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["--version"],
        ["nonsense"],
        ["ls", "--nonsense"],
        ["ls", "--json"],
        ["show", "support-42", "--json"],
        ["show", "nobody"],
        ["doctor"],
        ["ls", "--store", "mysql://there"],
    ],
)
def test_it_says_and_ends_as_one_of_its_own(talked: Shell, words: list[str]) -> None:
    here, anew = talked.run(*words), talked.run_anew(*words)
    assert (here.code, here.bytes, here.err) == (anew.code, anew.bytes, anew.err)
    assert here.bytes + here.err.encode()


def test_it_gets_what_it_is_given(talked: Shell) -> None:
    talked.ok("append", "support-42", "-", stdin="stdin \u00e4\n".encode())
    assert talked.ok("show", "support-42").rstrip().endswith("stdin \u00e4")
    talked.environment["FORCE_COLOR"] = "1"
    assert "\x1b[" in talked.ok("ls")
    del talked.environment["FORCE_COLOR"]
    assert "\x1b[" not in talked.ok("ls")
    hours = []
    for zone in ("Etc/GMT-14", "Etc/GMT+12"):
        talked.environment["TZ"] = zone
        hours.append(talked.ok("log", "support-42").splitlines()[0])
    assert hours[0] != hours[1], "26 hours lie between them"


def test_it_runs_where_it_is_started(
    talked: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talked.environment["HOLDFAST_URL"] = os.path.relpath(talked.store)
    assert "support-42" in talked.ok("ls")


def test_each_has_random_ids_of_its_own(shell: Shell) -> None:
    made = {shell.json("new")["id"] for _ in range(3)}
    assert len(made) == 3


def test_what_it_cannot_do_is_left_to_an_interpreter(talked: Shell) -> None:
    """More input than a pipe holds, and what is read when an interpreter starts."""
    assert talked.nursery is not None
    with talked.nursery.free(talked.environment, b"") as free:
        assert free
        with talked.nursery.free(talked.environment, b"") as both:
            assert not both
    with talked.nursery.free(talked.environment, b"x" * (PIPE_HOLDS + 1)) as free:
        assert not free
    with talked.nursery.free({**talked.environment, "PYTHONIOENCODING": "ascii"}, b"") as free:
        assert not free
    talked.ok("append", "support-42", "-", stdin=b"x" * 100_000)
    talked.environment["PYTHONIOENCODING"] = "ascii"
    assert "x" * 1000 in talked.ok("show", "support-42", "--json")
