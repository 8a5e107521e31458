"""Commands say and do the same wherever the store is; what only a server has is said in its words.

The same script is run on a file and on a server, in this process. What differs by chance (ids,
times, sizes) is masked, and all the rest must be equal. Models are a provider on loopback.
"""

import difflib
import io
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
from holdfast.cli.program import COMMANDS, run
from tests.agent.provider import Provider, environment
from tests.cli.shell import talk
from tests.servers import OWNER, WORKER, as_user, shared_database
from tests.store_urls import Kind, let_the_owner_in, place, superuser, with_options

Say = Callable[..., tuple[int, str, str]]

_SCRIPT: list[list[str]] = [
    ["new", "--key", "fresh", "--title", "Fresh", "--meta", "channel:=7"],
    ["new", "--key", "fresh"],
    ["purge", "fresh", "--yes"],
    ["talk"],
    ["ls"],
    ["show", "support-42"],
    ["show", "support-42", "--json"],
    ["log"],
    ["log", "-n", "3", "--json", "support-42"],
    ["append", "support-42", "a question about Ärger and 日本語", "--id", "one"],
    ["append", "support-42", "a question about Ärger and 日本語", "--id", "one"],
    ["append", "support-42", "something else", "--id", "one"],
    ["search", "parcel"],
    ["search", "日本"],
    ["search", "nowhere"],
    ["search", "parcel", "--session", "support-42", "--all-branches", "--json"],
    ["summarize", "support-42", "The parcel is in Oslo.", "--upto", "5"],
    ["undo", "support-42"],
    ["fork", "support-42", "--key", "copy"],
    ["append", "copy", "in the fork"],
    ["undo", "support-42"],
    ["redo", "support-42"],
    ["rewind", "support-42", "2"],
    ["tree", "support-42"],
    ["window", "support-42"],
    ["window", "support-42", "--json"],
    ["run", "--session", "asked", "--no-tools", "say in the store"],
    ["run", "--session", "asked", "--no-tools", "--json", "say once more"],
    ["show", "asked", "--json"],
    ["chat", "--resume", "asked", "--no-tools"],
    ["chat", "--fork", "asked", "--at", "2", "--no-tools"],
    ["ls"],
    ["new", "--parent", "asked", "--relation", "delegate", "--agent", "researcher"],
    ["tree", "asked"],
    ["rename", "copy", "Another title"],
    ["pin", "copy"],
    ["archive", "support-42"],
    ["ls", "--all"],
    ["stats"],
    ["stats", "--json"],
    ["recover", "--all"],
    ["set", "copy", "--model", "m"],
    ["export", "support-42", "--review"],
    ["export", "-o", "{folder}/out.jsonl", "--no-redact"],
    ["import", "{folder}/out.jsonl"],
    ["import", "{folder}/out.jsonl", "--json"],
    ["erase", "copy", "1", "--yes"],
    ["show", "copy"],
    ["trash", "copy"],
    ["ls", "--trashed"],
    ["restore", "copy"],
    ["trash", "copy"],
    ["purge", "copy", "--yes"],
    ["show", "copy"],
    ["index", "rebuild"],
    ["search", "parcel"],
    ["index"],
    ["index", "status", "--json"],
    ["prune", "--older-than", "1d"],
    ["prune", "--keep-last", "1", "--archive", "{folder}/old.jsonl", "--apply", "--yes"],
    ["ls", "--trashed"],
    ["prune", "--empty-trash", "0d", "--apply", "--yes", "--json"],
    ["import", "{folder}/old.jsonl"],
    ["clear", "support-42"],
    ["doctor"],
    ["doctor", "--fix"],
    ["ls", "--json"],
]
# What looks for something, or changes what is there.
_FUTILE: list[list[str]] = [
    ["doctor"],
    ["doctor", "--fix"],
    ["doctor", "--json"],
    ["ls"],
    ["show", "k"],
    ["log"],
    ["search", "parcel"],
    ["tree", "k"],
    ["window", "k"],
    ["stats"],
    ["summarize", "k", "text"],
    ["undo", "k"],
    ["fork", "k"],
    ["rename", "k", "title"],
    ["trash", "k"],
    ["purge", "k", "--yes"],
    ["erase", "k", "1", "--yes"],
    ["prune", "--older-than", "1d", "--apply", "--yes"],
    ["export", "-o", "{folder}/none.jsonl"],
    ["copy", "{url}", "{folder}/none.db"],
    ["recover", "--all"],
    ["index"],
    ["index", "rebuild"],
]
# What is said into a conversation, line by line.
_SPOKEN = "say it is here\n/usage\nslow 3 0.01\n"
# These are not about a store, or have tests of their own below.
_ELSEWHERE = {"models", "config", "completion", "backup", "restore-backup", "copy", "prove"}
_MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DAY"),
    (re.compile(r"\b\d+ (s|min|h) ago|just now"), "AGO"),
    (re.compile(r"\b[\d.]+ (k|M)?B\b|\b\d+ bytes"), "SIZE"),
    (re.compile(r", SIZE on disk"), ""),  # A server's files are not one tenant's.
    (re.compile(r"\b[\d.]+ (ms|s)\b|(?<=latency_ms\": )\d+"), "LONG"),
    (re.compile(r"(?<=(turn \d of |rked from ))[a-z2-7]{8}\b"), "SHORT"),
]
_ID = re.compile(r"\b[a-z2-7]{16}\b")
_NAME = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b")
# What is said of a store's own ways: where it is, how it is set up, what is left of the erased.
_ITS_OWN = re.compile(
    r"^store  |^on disk|^ *index +(FOLDER|postgres)|^  not searched:|^  proved:|"
    r"^ ok    (?!contents|open turns|damage)|"
    r'^ *"(store|path|files|bytes|file_bytes|problem|searchable)":'
)


@pytest.fixture
def say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Say]:
    """Run a command as the program does, with a model that answers."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def said(url: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("HOLDFAST_URL", url)
        spoken = _SPOKEN if arguments[0] == "chat" else ""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(spoken.encode())))
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    with Provider() as provider:
        for name, value in environment(provider.url).items():
            monkeypatch.setenv(name, value)
        yield said


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
    copies = folder / "copies"  # not beside the store, where erasure would name them
    copies.mkdir()
    for words in _SCRIPT:
        if words == ["talk"]:
            talk(url)
            continue
        code, out, err = say(url, *(word.format(folder=copies) for word in words))
        said = (out + err).replace(str(folder), "FOLDER")
        lines += [f"$ {' '.join(words)} -> {code}", *_masked(said, names)]
    return lines


def test_every_command_says_the_same_on_a_server(tmp_path: Path, say: Say) -> None:
    """From the first look to the purge: the same words, the same exit codes."""
    told = []
    for kind in ("sqlite", "postgres"):
        folder = tmp_path / kind
        folder.mkdir()
        with place(kind, folder) as url:
            told.append(_transcript(url, folder, say))
    differ = "\n".join(difflib.unified_diff(told[0], told[1], n=4, lineterm=""))
    assert not differ, differ
    assert sum(line.endswith("-> 0") for line in told[0]) > 50


def test_where_no_store_is_nothing_finds_one_and_nothing_makes_one(
    tmp_path: Path, say: Say
) -> None:
    """Only what writes something new begins one, for whoever may."""
    missing = _without_a_store()
    told = []
    for url, where in (
        (f"sqlite:///{tmp_path}/none/agent.db", f"{tmp_path}/none/agent.db"),
        (missing, "postgresql://"),
    ):
        lines = []
        for words in _FUTILE:
            code, out, err = say(url, *(word.format(folder=tmp_path, url=url) for word in words))
            said = (out + err).replace("(schema none_yet) ", "")
            lines += [f"$ {words} -> {code}", *said.replace(where, "WHERE").splitlines()]
        told.append([re.sub(r"(?<=WHERE)\S+", "", line) for line in lines])
    differ = "\n".join(difflib.unified_diff(told[0], told[1], n=1, lineterm=""))
    assert not differ, differ
    assert sum("there is no store at WHERE yet" in line for line in told[0]) >= 15
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert _schemas("none_yet") == []
    assert say(missing, "append", "k", "text")[0] == 0
    assert _schemas("none_yet") == ["none_yet"]
    with superuser() as admin:
        admin.execute("DROP SCHEMA none_yet CASCADE")


def _without_a_store() -> str:
    """The URL of a place on a server where no store is, for one who may make one."""
    let_the_owner_in()
    return with_options(as_user(shared_database(), OWNER), schema="none_yet")


def test_no_command_is_forgotten() -> None:
    """A new one is tried on a server, too."""
    assert {words[0] for words in _SCRIPT} - {"talk"} == COMMANDS.keys() - _ELSEWHERE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a store on a server, for a role that owns nothing."""
    with place("postgres", tmp_path) as url:
        yield url


def test_doctor_tells_how_the_server_is_set_up(server: str, say: Say) -> None:
    """And finds what somebody did to the rows."""
    talk(server)
    code, out, _ = say(server, "doctor")
    assert (code, "No problems found" in out) == (0, True)
    for name in ("engine: PostgreSQL", "fsync: on", "full_page_writes: on", "standby: no"):
        assert f" ok    {name}" in out
    assert " ok    row security: on" in out
    with superuser(server) as admin:
        admin.execute(
            f"CREATE TABLE open_to_all (n integer); GRANT SELECT ON open_to_all TO {WORKER}"
        )
        code, out, _ = say(server, "doctor")
        admin.execute("DROP TABLE open_to_all")
        assert (code, "WRONG  row security: open_to_all" in out) == (1, True)
        admin.execute("UPDATE messages SET body = body || %b WHERE seq = 3", (b" ",))
    code, out, _ = say(server, "doctor", "--json")
    assert code == 1
    found: dict[str, Any] = json.loads(out)
    assert [damage["seq"] for damage in found["damage"]] == [3]


@pytest.mark.parametrize(
    "arguments",
    [("backup", "copy.db"), ("restore-backup", "--yes", "copy.db"), ("doctor", "--fix")],
)
def test_a_server_is_backed_up_by_its_own_tools(
    server: str, say: Say, tmp_path: Path, arguments: list[str]
) -> None:
    """It is said which; no file is made."""
    talk(server)
    with superuser(server) as admin:
        admin.execute("UPDATE messages SET body = body || %b WHERE seq = 3", (b" ",))
    code, out, err = say(server, *arguments)
    assert code != 0
    assert "PostgreSQL" in out + err
    assert "docs/postgresql.md" in out + err
    assert list((tmp_path / "work").iterdir()) == []


def test_that_a_server_cannot_be_searched_is_said_and_is_no_failure(server: str, say: Say) -> None:
    """The rows are gone, where their bytes are nobody here can tell, and no script need stop."""
    talk(server)
    code, out, _ = say(server, "erase", "support-42", "1", "--yes")
    assert (code, "  not searched: the server's files cannot be" in out) == (0, True)
    for arguments in (["purge", "support-42"], ["prune", "--empty-trash", "0d", "--apply"]):
        talk(server)
        say(server, "trash", "support-42")
        code, out, _ = say(server, *arguments, "--yes", "--json")
        found = json.loads(out)
        scan = (found[0] if isinstance(found, list) else found)["scan"]
        assert (code, scan["searchable"], scan["found"]) == (0, False, [])
        assert scan["fragments"] > 0
        assert "docs/postgresql.md" in scan["problem"]


def test_a_server_that_is_away_is_an_error_without_its_password(say: Say) -> None:
    """With the exit code of storage that failed."""
    url = "postgresql://somebody:hush@127.0.0.1:1/database?connect_timeout=2"
    for arguments in (["ls"], ["append", "k", "text"], ["doctor"], ["prove", "--seconds", "1"]):
        code, out, err = say(url, *arguments)
        assert code in {1, 5}
        assert "cannot be reached" in out + err
        assert "hush" not in out + err


# --- copy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [("sqlite", "postgres"), ("postgres", "sqlite"), ("postgres", "postgres")],
)
def test_a_store_is_copied_from_and_to_a_server(
    first: Kind, second: Kind, tmp_path: Path, say: Say
) -> None:
    """And back into a third one: all of them say the same, to the byte."""
    with (
        place(first, tmp_path) as source,
        place(second, tmp_path) as target,
        place(first, tmp_path) as back,
    ):
        talk(source)
        for origin, to in ((source, target), (target, back)):
            code, out, err = say(source, "copy", origin, to)
            assert (code, err) == (0, "")
            assert "1 session added" in out
            assert "the same on both sides" in out
            code, out, _ = say(source, "copy", origin, to, "--json")
            found = json.loads(out)
            assert (code, found["same"], found["added"], found["unchanged"]) == (0, True, 0, 1)
        shown = [say(url, "show", "support-42", "--json") for url in (source, target, back)]
        assert shown[0] == shown[1] == shown[2]
        assert say(source, "append", "support-42", "more")[0] == 0
        assert say(back, "append", "support-42", "something else")[0] == 0
        assert say(source, "copy", source, target)[0] == 0
        code, _, err = say(source, "copy", target, back)
        assert (code, "other content under the same ids" in err) == (4, True)
        assert say(source, "copy", target, target)[0] == 2


# --- prove --------------------------------------------------------------------------------------


def _prove(folder: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "prove", "--store", url, *arguments],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )


def _schemas(prefix: str = "holdfast_prove") -> list[str]:
    with superuser() as admin:
        found = admin.execute("SELECT nspname FROM pg_namespace ORDER BY 1").fetchall()
    return [name for (name,) in found if name.startswith(prefix)]


@pytest.mark.timeout(600)  # It tries longer and longer, on a machine that is busy.
def test_the_proof_runs_on_a_server_beside_the_store(server: str, tmp_path: Path) -> None:
    """Real kills, nothing lost, nothing left behind, and the store as it was."""
    with holdfast.open(server) as store:
        store.session("mine")
    owner = as_user(server, OWNER)
    for seconds in ("1", "3", "9", "27"):
        ended = _prove(tmp_path, owner, "--seconds", seconds, "--writers", "3", "--json")
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


def test_a_proof_needs_a_role_that_may_make_a_schema(server: str, tmp_path: Path) -> None:
    """It is said before anybody writes."""
    before = _schemas()
    ended = _prove(tmp_path, server, "--seconds", "1")
    assert ended.returncode == 5
    assert "CREATE on the database" in " ".join(ended.stderr.split())
    assert _schemas() == before
