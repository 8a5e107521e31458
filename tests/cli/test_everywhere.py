"""Commands say and do the same wherever the store is; what only a server has is said in its words.

The same script is run on a file and on a server, in this process. What differs by chance (ids,
times, sizes) is masked, and all the rest must be equal.
"""

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.program import run
from tests.cli.shell import talk
from tests.places import place, superuser
from tests.servers import OWNER, as_user

Say = Callable[..., tuple[int, str, str]]

_SCRIPT: list[list[str]] = [
    ["ls"],
    ["show", "support-42"],
    ["show", "support-42", "--json"],
    ["log"],
    ["append", "support-42", "a question about Ärger and 日本語", "--id", "one"],
    ["append", "support-42", "a question about Ärger and 日本語", "--id", "one"],
    ["append", "support-42", "something else", "--id", "one"],
    ["search", "parcel"],
    ["search", "日本"],
    ["search", "nowhere"],
    ["fork", "support-42", "--key", "copy"],
    ["append", "copy", "in the fork"],
    ["undo", "support-42"],
    ["redo", "support-42"],
    ["rewind", "support-42", "2"],
    ["tree", "support-42"],
    ["window", "support-42"],
    ["rename", "copy", "Another title"],
    ["pin", "copy"],
    ["archive", "support-42"],
    ["ls", "--all"],
    ["stats"],
    ["recover", "--all"],
    ["set", "copy", "--model", "m"],
    ["export", "-o", "{folder}/out.jsonl"],
    ["import", "{folder}/out.jsonl"],
    ["erase", "copy", "1", "--yes"],
    ["show", "copy"],
    ["trash", "copy"],
    ["ls", "--trashed"],
    ["restore", "copy"],
    ["trash", "copy"],
    ["purge", "copy", "--yes"],
    ["show", "copy"],
    ["index"],
    ["prune", "--older-than", "1d"],
    ["clear", "support-42"],
    ["doctor"],
    ["ls", "--json"],
]
_MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DAY"),
    (re.compile(r"\b\d+ (s|min|h) ago|just now"), "AGO"),
    (re.compile(r"\b[\d.]+ (k|M)?B\b|\b\d+ bytes"), "SIZE"),
    (re.compile(r"\b[\d.]+ (ms|s)\b|(?<=latency_ms\": )\d+"), "LONG"),
    (re.compile(r"(?<=(turn \d of |rked from ))[a-z2-7]{8}\b"), "SHORT"),
]
_ID = re.compile(r"\b[a-z2-7]{16}\b")
_NAME = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b")
# What is said of a store's own ways: where it is, how it is set up, what is left of the erased.
_ITS_OWN = re.compile(
    r"^store  |^on disk|^ *index +(FOLDER|postgres)|^  not proved:|^  proved:|"
    r"^ ok    (?!contents|open turns|damage)"
)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command as the program does."""

    def said(url: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("HOLDFAST_URL", url)
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return said


def _masked(text: str, names: dict[str, str]) -> list[str]:
    """Leave out what chance decides; ids are numbered as they appear."""
    for mask, word in _MASKS:
        text = mask.sub(word, text)
    for kind in (_ID, _NAME):
        text = kind.sub(lambda found: names.setdefault(found[0], f"ID{len(names)}"), text)
    lines = (" ".join(line.split()) for line in text.splitlines() if not _ITS_OWN.search(line))
    return [line for line in lines if line]


def _transcript(url: str, folder: Path, say: Say) -> list[str]:
    """Run the script; give all that was said."""
    names: dict[str, str] = {}
    lines = []
    for words in _SCRIPT:
        code, out, err = say(url, *(word.format(folder=folder) for word in words))
        said = (out + err).replace(str(folder), "FOLDER")
        if "  not proved: the server's files" in out and code == 1:
            code = 0  # Nothing failed; whether bytes are gone cannot be told from here.
        lines += [f"$ {' '.join(words)} -> {code}", *_masked(said, names)]
    return lines


def test_every_command_says_the_same_on_a_server(tmp_path: Path, say: Say) -> None:
    """From the first look to the purge: the same words, the same exit codes."""
    told = []
    for kind in ("sqlite", "postgres"):
        folder = tmp_path / kind
        folder.mkdir()
        with place(kind, folder) as url:
            talk(url)
            told.append(_transcript(url, folder, say))
    differ = "\n".join(difflib.unified_diff(told[0], told[1], n=4, lineterm=""))
    assert not differ, differ
    assert sum(line.endswith("-> 0") for line in told[0]) > 30


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a store on a server, for a role that owns nothing."""
    with place("postgres", tmp_path) as url:
        yield url


def test_doctor_tells_how_the_server_is_set_up(server: str, say: Say) -> None:
    """And finds what somebody did to the rows."""
    talk(server)
    code, out, _ = say(server, "doctor")
    assert (code, "All is well" in out) == (0, True)
    for name in ("engine: PostgreSQL", "fsync: on", "full_page_writes: on", "standby: no"):
        assert f" ok    {name}" in out
    with superuser(server) as admin:
        admin.execute("UPDATE messages SET body = body || %b WHERE seq = 3", (b" ",))
    code, out, _ = say(server, "doctor", "--json")
    assert code == 1
    found: dict[str, Any] = json.loads(out)
    assert [damage["seq"] for damage in found["damage"]] == [3]


@pytest.mark.parametrize("arguments", [("backup", "copy.db"), ("doctor", "--fix")])
def test_a_server_is_backed_up_by_its_own_tools(
    server: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """It is said which; no file is made."""
    monkeypatch.chdir(tmp_path)
    talk(server)
    with superuser(server) as admin:
        admin.execute("UPDATE messages SET body = body || %b WHERE seq = 3", (b" ",))
    code, out, err = say(server, *arguments)
    assert code != 0
    assert "PostgreSQL" in out + err
    assert "docs/postgresql.md" in out + err
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_is_an_error_without_its_password(say: Say) -> None:
    """With the exit code of storage that failed."""
    url = "postgresql://somebody:hush@127.0.0.1:1/database?connect_timeout=2"
    for arguments in (["ls"], ["append", "k", "text"], ["doctor"], ["prove", "--seconds", "1"]):
        code, out, err = say(url, *arguments)
        assert code in {1, 5}
        assert "cannot be reached" in out + err
        assert "hush" not in out + err


# --- prove --------------------------------------------------------------------------------------


def _prove(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "prove", "--store", url, *arguments],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )


def _schemas() -> list[str]:
    with superuser() as admin:
        found = admin.execute("SELECT nspname FROM pg_namespace ORDER BY 1").fetchall()
    return [name for (name,) in found if name.startswith("holdfast_prove")]


def test_the_proof_runs_on_a_server_beside_the_store(server: str, tmp_path: Path) -> None:
    """Real kills, nothing lost, nothing left behind, and the store as it was."""
    with holdfast.open(server) as store:
        store.session("mine")
    owner = as_user(server, OWNER)
    for seconds in ("4", "8", "16"):
        ended = _prove(owner, "--seconds", seconds, "--writers", "4", "--json")
        figures: dict[str, Any] = json.loads(ended.stdout)
        if not figures["vacuous"]:
            break
    assert (ended.returncode, figures["problems"], figures["vacuous"]) == (0, [], [])
    for name in ("kills", "sent_again", "overlaps", "acknowledged"):
        assert figures[name] > 0
    assert "PostgreSQL" in figures["versions"]
    assert figures["file_system"] == "the server"
    assert _schemas() == []
    with holdfast.open(server) as store:
        assert [info.key for info in store.sessions()] == ["mine"]


def test_a_proof_needs_a_role_that_may_make_a_schema(server: str) -> None:
    """It is said before anybody writes."""
    ended = _prove(server, "--seconds", "1")
    assert ended.returncode == 5
    assert "CREATE on the database" in " ".join(ended.stderr.split())
    assert _schemas() == []
