"""`holdfast search`, `holdfast index`, `show --at`, and what `doctor` says of the index."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.cli.program import run
from holdfast.search import manager
from holdfast.search.fts5 import IndexFile
from holdfast.values import Page
from tests.cli.shell import HOSTILE, RAW, Shell


@pytest.fixture
def told(shell: Shell) -> Shell:
    """A shell with some talks, one of them a fork."""
    shell.store.parent.mkdir(mode=0o700)
    with holdfast.open(shell.store) as store:
        parcel = store.session("parcel", title="A parcel", scope="mail")
        parcel.append(*(Message.user(f"word{number}") for number in range(30)))
        parcel.append(Message.user("Where is it?"), Message.assistant("In Oslo, in Oslo."))
        fork = parcel.fork(key="fork")
        fork.append(Message.user("Is it still in Oslo?"))
        store.session("weather").append(Message.user("Rain in Oslo"))
    return shell


def test_what_is_found(told: Shell) -> None:
    out = told.ok("search", "oslo")
    lines = [line.split()[:3] for line in out.splitlines()[::2]]
    assert lines == [["parcel", "#32", "assistant"], ["weather", "#1", "user"]]
    assert "and 1 more match" in out
    assert "  In Oslo, in Oslo." in out.splitlines()


def test_json(told: Shell) -> None:
    page = told.json("search", "oslo", "--limit", "1", "--around", "1")
    (hit,) = page["items"]
    assert (hit["seq"], hit["role"], hit["more"], hit["title"]) == (32, "assistant", 1, "A parcel")
    assert [hit["snippet"][start:end] for start, end in hit["marks"]] == ["Oslo", "Oslo"]
    assert [message["seq"] for message in hit["before"]] == [31]
    rest = told.json("search", "oslo", "--limit", "1", "--around", "1", "--cursor", page["cursor"])
    assert ([hit["snippet"] for hit in rest["items"]], rest["cursor"]) == (["Rain in Oslo"], None)


@pytest.mark.parametrize(
    ("words", "seqs"),
    [
        (["oslo", "--session", "fork"], [32, 33]),
        (["oslo", "--session", "parcel", "--role", "user"], []),
        (["oslo", "--scope", "mail"], [32]),
        (["oslo", "--agent", "nobody"], []),
        (["oslo", "still"], [33]),
        (["oslo still"], [33]),
        (['"in oslo" -rain'], [32]),
        (["--", "-rain", "oslo"], [32]),
        (["--literal", "in Oslo, in Oslo."], [32]),
        (["--literal", "in Oslo -rain"], []),
        (["osl*", "--since", "1d"], [32, 1]),
        (["oslo", "--until", "2020"], []),
        (["role:assistant"], [32]),
    ],
)
def test_options(told: Shell, words: list[str], seqs: list[int]) -> None:
    found = json.loads(told.ok("search", "--json", *words))
    assert sorted(hit["seq"] for hit in found["items"]) == sorted(seqs)


def test_all_branches_and_thinking(told: Shell) -> None:
    with holdfast.open(told.store) as store:
        session = store.session("parcel")
        session.append(Message.assistant([holdfast.Thinking("perhaps Bergen")]))
        session.rewind(31)
    assert told.ok("search", "bergen") == "Nothing found.\n"
    assert told.ok("search", "bergen", "--all-branches") == "Nothing found.\n"
    assert "perhaps Bergen" in told.ok("search", "bergen", "--all-branches", "--thinking")


def test_nothing_found(told: Shell) -> None:
    assert told.ok("search", "bergen") == "Nothing found.\n"
    assert told.json("search", "bergen") == {"items": [], "cursor": None, "behind": 0}


def test_what_was_not_searched_yet_is_said(
    told: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process is still indexing it."""
    monkeypatch.setattr(holdfast.Store, "search", lambda *_, **__: Page((), None, behind=1234))
    assert run(["search", "oslo", "--store", str(told.store)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Nothing found.",
        "The index is still catching up: 1,234 older messages not searched yet",
    ]
    assert run(["search", "oslo", "--store", str(told.store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"items": [], "cursor": None, "behind": 1234}


def test_titles(told: Shell) -> None:
    assert told.ok("search", "a parcel").splitlines()[0].split()[:2] == ["parcel", "title"]


def test_going_there(told: Shell) -> None:
    """A terminal is told how, and that works."""
    told.environment["FORCE_COLOR"] = "1"
    told.environment["COLUMNS"] = "200"
    out = told.ok("search", "oslo")
    assert "\x1b[1;33mOslo\x1b[0m" in out
    assert out.splitlines()[-1].endswith("holdfast show parcel --at 32")
    del told.environment["FORCE_COLOR"]
    shown = told.ok("show", "parcel", "--at", "16")
    assert "word15" in shown
    assert "word11" in shown
    assert "word19" in shown
    assert "word1\n" not in shown
    assert "word29" not in shown


def test_going_there_by_the_id_of_a_message(told: Shell) -> None:
    """Also in a fork, to what it has from its parent, and to what was undone."""
    (hit,) = told.json("search", "word20")["items"]
    for ref in ("parcel", "fork"):
        found = told.json("show", ref, "--at", hit["message_id"])
        assert found["at"] == 21
        assert 21 in [message["seq"] for message in found["messages"]]
    with holdfast.open(told.store) as store:
        store.session("parcel").rewind(5)
    found = told.json("show", "parcel", "--at", hit["message_id"])
    assert (found["at"], found["branch"]["number"]) == (21, 1)


def test_no_store_yet(shell: Shell) -> None:
    ran = shell.run("search", "oslo")
    assert (ran.code, shell.store.exists()) == (3, False)
    assert "there is no store" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument"),
        (["x", "--limit", "0"], "--limit"),
        (["x", "--role", "nobody"], "--role"),
        (["x", "--since", "yesterday"], "since"),
        (["x", "--cursor", "nonsense"], "cursor"),
        (["-x"], "No such option"),
    ],
)
def test_called_in_a_way_that_makes_no_sense(told: Shell, words: list[str], said: str) -> None:
    ran = told.run("search", *words)
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_an_unknown_session(told: Shell) -> None:
    assert told.run("search", "oslo", "--session", "nobody").code == 3


# Nothing is read-only for root, who therefore gives up the right to write everywhere; another user
# might not even be able to read the interpreter.
_AS_OTHERS_DO = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(
    os.geteuid() == 0 and sys.platform != "linux", reason="here, root cannot but write everywhere"
)
def test_a_store_that_can_only_be_read(told: Shell) -> None:
    """It is searched without an index, and nothing is written."""
    if os.geteuid() == 0:
        told.command = [sys.executable, "-c", _AS_OTHERS_DO, *told.command]
    told.store.chmod(0o400)
    told.store.parent.chmod(0o500)
    try:
        before = sorted(told.store.parent.iterdir())
        found = told.run_anew("search", "oslo")
        assert (found.code, found.err) == (0, "")
        assert "In Oslo" in found.out
        assert sorted(told.store.parent.iterdir()) == before
        assert told.run_anew("append", "parcel", "no").code == 5
    finally:
        told.store.parent.chmod(0o700)


def test_hostile_text_is_shown_as_escapes(shell: Shell) -> None:
    shell.store.parent.mkdir(mode=0o700)
    with holdfast.open(shell.store) as store:
        session = store.session("k", title=f"title {HOSTILE}")
        session.append(Message.user(f"needle {HOSTILE}"), Message.user(f"after {HOSTILE}"))
    for words in (["needle", "--around", "1"], ["title"]):
        out = shell.ok("search", *words)
        assert not RAW & set(out)


# -------------------------------------------------------------------------------------- the index


def _index(told: Shell) -> Path:
    return told.store.with_name(f"{told.store.name}-search")


def test_the_state_of_the_index(told: Shell) -> None:
    """Looking makes none; a search does; a rebuild makes it anew."""
    assert told.json("index")["state"] == "missing"
    assert not _index(told).exists()
    told.ok("search", "oslo")
    ready = told.json("index", "status")
    assert (ready["state"], ready["messages"], ready["behind"]) == ("ready", 34, 0)
    assert ready["bytes"] == _index(told).stat().st_size > 0
    told.ok("append", "parcel", "more")
    assert told.json("index")["state"] == "behind"
    assert "1 not indexed yet" in told.ok("index")
    rebuilt = told.json("index", "rebuild")
    assert (rebuilt["state"], rebuilt["messages"]) == ("ready", 35)


def test_an_index_is_brought_up_to_date_once(told: Shell) -> None:
    """In text and as JSON; again there is nothing to do; without `run` the option is refused."""
    status = json.loads(told.ok("index", "run", "--once", "--json"))
    assert (status["state"], status["messages"], status["behind"]) == ("ready", 34, 0)
    assert told.ok("index", "run", "--once").startswith("ready: 34 messages, ")
    assert told.run("index", "status", "--once").code == 2


def test_an_index_is_kept_up_to_date_until_the_process_is_stopped(told: Shell) -> None:
    """No search and no append has to index anything meanwhile."""
    process = told.start("index", "run", "--json")
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["state"] == "ready"
        with holdfast.open(told.store) as store:
            store.session("later").append(Message.user("more"), Message.assistant("and more"))
            until = time.monotonic() + 60
            while store.index_status().behind:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert store.index_status().messages == 36
        process.terminate()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, b"Traceback" in err) == (-signal.SIGTERM, False)


def test_an_index_that_cannot_be_stored_is_an_error(
    told: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manager, "index_location", lambda _: None)
    assert run(["index", "run", "--once", "--store", str(told.store)]) == 5
    assert "this store cannot have a search index" in capsys.readouterr().err


def test_a_store_without_a_message_needs_no_index(shell: Shell) -> None:
    shell.store.parent.mkdir(mode=0o700)
    holdfast.open(shell.store).close()
    assert shell.json("index", "run", "--once")["behind"] == 0


def test_doctor_compares_the_index_with_the_store(told: Shell) -> None:
    assert "search index: missing" in told.ok("doctor")
    told.ok("search", "oslo")
    assert "search index: ready: 34 messages" in told.ok("doctor")
    data = bytearray(_index(told).read_bytes())
    data[len(data) // 2] ^= 1
    _index(told).write_bytes(data)
    ran = told.run("doctor")
    assert ran.code == 1
    assert "WRONG  search index" in ran.out
    assert "holdfast index rebuild" in ran.out
    told.ok("index", "rebuild")
    assert "No problems found" in told.ok("doctor")


def test_doctor_finds_what_an_index_has_too_little_of(told: Shell) -> None:
    told.ok("search", "oslo")
    file = IndexFile(_index(told))
    with file.writing():
        file.truncate_branch(1, 20)
    file.close()
    ran = told.run("doctor")
    assert (ran.code, "the index has 20" in ran.out) == (1, True)
