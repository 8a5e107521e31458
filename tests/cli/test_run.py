"""`holdfast run`: the reply on standard output, events as lines, exit codes, and nothing lost."""

from __future__ import annotations

import array
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import program
from tests.agent.provider import Provider, environment
from tests.cli.shell import HOSTILE, RAW, Shell, crash


class Asking:
    """`holdfast run` in this process, with a provider on loopback."""

    def __init__(
        self,
        provider: Provider,
        root: Path,
        patch: pytest.MonkeyPatch,
        captured: pytest.CaptureFixture[str],
    ) -> None:
        self.provider = provider
        self.store = root / "agent.db"
        self.config = root / "holdfast.toml"
        self.work = root / "work"
        self._patch = patch
        self._captured = captured
        self.work.mkdir()
        self.configure("[retry]\nbase = 0\njitter = 0\n")
        patch.chdir(self.work)
        for name, value in environment(provider.url).items():
            patch.setenv(name, value)
        patch.setenv("HOLDFAST_URL", str(self.store))
        patch.setenv("HOLDFAST_CONFIG", str(self.config))

    def configure(self, text: str) -> None:
        self.config.write_text(text)

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self._captured.readouterr()
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = program.run(["run", *arguments])
        said = self._captured.readouterr()
        return code, said.out, said.err

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        code, out, err = self.run(*arguments, stdin=stdin)
        assert (code, err) == (0, "")
        return out

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        _, out, _ = self.run(*arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def sent(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        messages: list[dict[str, Any]] = self.provider.requests[-1]["messages"]
        return messages

    def opened(self) -> holdfast.Store:
        return holdfast.open(self.store)


@pytest.fixture
def asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Asking]:
    with Provider() as provider:
        yield Asking(provider, tmp_path, monkeypatch, capsys)


# -------------------------------------------------------------------------------- what is printed


def test_the_reply_is_all_of_standard_output(asking: Asking) -> None:
    assert asking.ok("say one two") == "one two\n"
    assert asking.ok(r"say one\n") == "one\n"


def test_text_before_and_after_a_call_is_on_lines_of_its_own(asking: Asking) -> None:
    asking.provider.say_next(
        {"say": "Let me see.", "calls": [{"name": "list_files"}]}, {"say": "There is nothing."}
    )
    assert asking.ok("Look") == "Let me see.\nThere is nothing.\n"


def test_events_are_lines_and_the_last_is_the_result(asking: Asking) -> None:
    first, *events, last = asking.lines("say one two", "--run-id", "run-7")
    assert first["type"] == "started"
    assert (first["new"], first["model"], first["run_id"]) == (True, "mock-1", "run-7")
    assert first["why"] == "$HOLDFAST_MODEL says so"
    assert [event["type"] for event in events] == [
        "turn_started", "user", "model_called", "text", "text", "reply", "turn_ended"
    ]  # fmt: skip
    assert last["type"] == "result"
    assert (last["text"], last["state"], last["exit_code"]) == ("one two", "sealed", 0)
    assert last["session"] == first["session"]
    assert last["usage"]["output"] == 2


def test_nothing_that_a_model_says_moves_the_cursor(asking: Asking) -> None:
    bad = "".join(c for c in HOSTILE if c not in "\ud800\x00")
    asking.provider.say_next({"say": bad}, {"say": bad})
    shown = asking.ok("x")
    assert r"\x1b[2J" in shown
    assert not RAW & set(shown)
    _, out, err = asking.run("x", "--json")
    assert (out + err).isascii()


# -------------------------------------------------------------------------------------- exit codes


def test_a_model_that_fails_is_1(asking: Asking) -> None:
    """What was asked is kept, and the turn says why."""
    code, out, err = asking.run("--session", "a", "fail 400")
    assert (code, out) == (1, "")
    assert "answered 400" in err
    *_, last = asking.lines("--session", "a", "fail 400")
    assert (last["type"], last["state"], last["exit_code"]) == ("result", "failed", 1)
    with asking.opened() as store:
        [first, _] = store.get("a").turns()
    assert first.state == "failed"


def test_a_model_that_is_not_here_is_6_and_nothing_is_made(asking: Asking) -> None:
    code, out, err = asking.run("--model", "local:/nowhere.gguf", "x")
    assert (code, out) == (6, "")
    assert "there is no file /nowhere.gguf" in err
    assert not asking.store.exists()


def test_too_many_rounds_are_1(asking: Asking) -> None:
    code, _, err = asking.run("--max-rounds", "1", "call list_files {}")
    assert code == 1
    assert "which is the limit" in err


def test_a_session_that_is_busy_is_4(asking: Asking) -> None:
    with asking.opened() as store:
        with store.session("a").turn():
            code, out, err = asking.run("--session", "a", "say x")
    assert (code, out) == (4, "")
    assert "busy" in err or "open turn" in err


@pytest.mark.parametrize(
    "arguments",
    [(), ("-",), ("--session", "a", "--new", "x"), ("--session", "a", "--scope", "b", "x")],
)
def test_what_makes_no_sense_is_2(asking: Asking, arguments: tuple[str, ...]) -> None:
    assert asking.run(*arguments)[0] == 2
    assert not asking.store.exists()


def test_a_configuration_that_makes_no_sense_is_2(asking: Asking) -> None:
    asking.configure("[retry]\natempts = 3\n")
    code, _, err = asking.run("say x")
    assert code == 2
    assert f"{asking.config}, line 2" in err
    assert not asking.store.exists()


# -------------------------------------------------------------------------------- standard input


def test_standard_input_is_added_to_the_prompt(asking: Asking) -> None:
    asking.ok("Which of these?", stdin=b"one ``` two\n\xc3\xa9\n")
    with asking.opened() as store:
        [asked, _] = store.get("@latest").messages()
    assert [part.text for part in asked.parts] == [  # type: ignore[union-attr]
        "Which of these?", "This is on standard input:\n\n````\none ``` two\né\n````"
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_alone_is_the_prompt(asking: Asking, arguments: tuple[str, ...]) -> None:
    assert asking.ok(*arguments, stdin=b"say hello\n") == "hello\n"
    assert asking.sent()[-1]["content"] == "say hello"


def test_too_much_input_is_cut_and_told(asking: Asking) -> None:
    """In the middle of a character, too."""
    asking.configure("[model]\ncontext = 2000000\n")
    code, _, err = asking.run("say x", stdin=b"a" * (1024 * 1024 - 1) + "é".encode() * 1000)
    assert code == 0
    assert "only the first 1,048,576 bytes of standard input were used" in err
    with asking.opened() as store:
        [asked, _] = store.get("@latest").messages()
    assert "cut off at its end" in asked.text
    assert asked.text.count("a") >= 1024 * 1024 - 1
    assert "é" not in asked.text


def test_input_that_is_no_text_is_refused_whole(asking: Asking) -> None:
    code, _, err = asking.run("x", stdin=b"ok \xff")
    assert code == 2
    assert "byte 4" in err
    assert not asking.store.exists()


# ------------------------------------------------------------------------------- which session


def test_each_run_begins_a_session_in_its_directory(asking: Asking) -> None:
    asking.ok("say one")
    asking.ok("say two")
    with asking.opened() as store:
        sessions = store.sessions(cwd=str(asking.work)).items
    assert [info.messages for info in sessions] == [2, 2]
    assert sessions[0].model == "mock-1"


def test_a_key_goes_on_where_it_was_left(asking: Asking) -> None:
    asking.ok("--session", "a", "say one")
    asking.ok("--session", "a", "say two")
    said = [message["content"] for message in asking.sent() if message["role"] != "system"]
    assert said == ["say one", "one", "say two"]
    with asking.opened() as store:
        id = store.get("a").id
    first, *_ = asking.lines("--session", id, "say three")
    assert (first["session"], first["key"], first["new"]) == (id, "a", False)


def test_a_title_could_be_meant_either_way(asking: Asking) -> None:
    with asking.opened() as store:
        store.session("a", title="A parcel")
    code, _, err = asking.run("--session", "A parcel", "say x")
    assert code == 3
    assert "it may mean" in err
    assert asking.run("--session", "@pinned", "say x")[0] == 3


def test_a_scope_goes_on_with_its_latest(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = asking.lines("--scope", "nightly", "say one")
    monkeypatch.setenv("HOLDFAST_SCOPE", "nightly")
    second, *_ = asking.lines("say two")
    third, *_ = asking.lines("--new", "say three")
    other, *_ = asking.lines("--scope", "other", "say four")
    assert first["session"] == second["session"]
    assert len({first["session"], third["session"], other["session"]}) == 3
    with asking.opened() as store:
        assert store.get(third["session"]).info().scope == "nightly"


def test_a_run_goes_by_its_id(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_ID", "run-77")
    asking.ok("say one")
    asking.ok("say two", "--run-id", "run-78")
    with asking.opened() as store:
        assert store.get("run-77").messages()[-1].text == "one"
        assert store.get("run-78").messages()[-1].text == "two"


def test_what_a_crash_left_open_is_closed_and_told(asking: Asking) -> None:
    crash(asking.store, "a")
    code, out, err = asking.run("--session", "a", "say on")
    assert (code, out) == (0, "on\n")
    assert "an earlier turn was interrupted by a crash and has been closed." in err
    assert "closed. Its partial reply was kept." in err
    assert "call may or may not have been made" in err


def test_a_session_that_was_begun_elsewhere_stays_there_unless_that_is_gone(
    asking: Asking, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with asking.opened() as store:
        store.session("a", cwd=str(elsewhere))
    _, _, err = asking.run("--session", "a", "hello")
    assert f"tools work in {asking.work}; this session was started in {elsewhere}" in err
    with asking.opened() as store:
        assert store.get("a").info().cwd == str(elsewhere)
    elsewhere.rmdir()
    _, _, err = asking.run("--session", "a", "hello")
    assert "does not exist; tools work in" in err
    with asking.opened() as store:
        assert store.get("a").info().cwd == str(asking.work)


# --------------------------------------------------------------------- options and configuration


def test_a_command_is_refused_unless_it_is_allowed(asking: Asking) -> None:
    prompt = 'call run_command {"command": "echo hi > made.txt && cat made.txt"}'
    code, out, err = asking.run(prompt)
    assert code == 0
    assert "no user is present" in out
    assert "not allowed: run_command" in err
    assert not (asking.work / "made.txt").exists()
    assert "hi" in asking.ok("--yes", prompt)
    assert (asking.work / "made.txt").exists()


def test_the_configuration_allows_by_words(asking: Asking) -> None:
    asking.configure('[approve]\ncommands = ["echo hello"]\nwrites = true\n')
    assert "hello there" in asking.ok('call run_command {"command": "echo hello there"}')
    _, _, err = asking.run('call run_command {"command": "echo goodbye"}')
    assert "not allowed" in err
    asking.ok('call write_file {"path": "new.txt", "content": "x"}')
    assert (asking.work / "new.txt").read_text() == "x"


def test_a_workspace_cannot_allow_itself_anything(asking: Asking) -> None:
    (asking.work / "holdfast.toml").write_text('[approve]\ncommands = ["sh"]\n')
    code, _, err = asking.run('call run_command {"command": "sh x"}')
    assert code == 2
    assert "unless you trust it" in err
    assert not asking.store.exists()


def test_tools_can_be_chosen(asking: Asking) -> None:
    asking.configure('[tools]\nenabled = ["read_file", "list_files"]\n')
    asking.ok("say x")
    tools = asking.provider.requests[-1]["tools"]
    assert sorted(tool["function"]["name"] for tool in tools) == ["list_files", "read_file"]
    asking.ok("--no-tools", "say x")
    assert not asking.provider.requests[-1].get("tools")


def test_the_model_is_told_its_task(asking: Asking) -> None:
    asking.ok("say x", "--system", "Be brief.")
    assert asking.sent()[0] == {"role": "system", "content": "Be brief."}
    asking.ok("say x")
    assert str(asking.work) in asking.sent()[0]["content"]


def test_a_call_is_tried_as_often_as_configured(asking: Asking) -> None:
    code, out, err = asking.run("fail 500 2\nsay yes")
    assert (code, out) == (0, "yes\n")
    assert "attempt 1 of 5 failed" in err
    assert len(asking.provider.requests) == 3
    asking.configure("[retry]\nattempts = 1\n")
    assert asking.run("fail 500\nsay no")[0] == 1
    assert len(asking.provider.requests) == 4


def test_a_reply_that_broke_off_goes_on_in_its_line(asking: Asking) -> None:
    asking.provider.say_next({"say": "one two three", "cut": 3}, {"say": " three"})
    code, out, err = asking.run("Count")
    assert (code, out) == (0, "one two three\n")
    assert "attempt 1 of 5 failed" in err


def test_one_that_begins_anew_says_so(asking: Asking) -> None:
    asking.configure('[retry]\nbase = 0\njitter = 0\nbroken = "anew"\n')
    asking.provider.say_next({"say": "one two three", "cut": 3}, {"say": "one two three"})
    code, out, err = asking.run("Count")
    assert (code, out) == (0, "one two\none two three\n")
    assert "the reply broke off; the model starts over" in err


def test_prices_of_your_own_are_reckoned(asking: Asking) -> None:
    asking.configure('[prices."mock-1"]\ninput = 1_000_000\noutput = 0.5\n')
    asking.provider.say_next(
        {"say": "x", "usage": {"prompt_tokens": 2, "completion_tokens": 2_000_000}}
    )
    *_, last = asking.lines("x")
    assert Decimal(last["cost"]) == 3


def test_old_sessions_go_only_if_configured_and_never_the_one_in_use(asking: Asking) -> None:
    asking.ok("--session", "a", "say one")
    asking.ok("--session", "b", "say two")
    asking.configure('[retention]\nolder_than = "0h"\n')
    code, _, err = asking.run("--session", "b", "say three")
    assert code == 0
    assert "1 session idle for 0h moved to the trash" in err
    with asking.opened() as store:
        assert [info.key for info in store.sessions()] == ["b"]
        assert [info.key for info in store.sessions(trashed=True)] == ["a"]
        assert store.get("b").info().messages == 4


def test_the_model_of_the_configuration_is_used(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its address and key: each goes only to the provider that it is for."""
    monkeypatch.delenv("HOLDFAST_MODEL")
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("MY_KEY", "sk-mine")
    asking.configure(
        f'[model]\nname = "openai:mine-1"\nbase_url = "{asking.provider.url}"\n'
        'api_key_env = "MY_KEY"\n'
    )
    first, *_, last = asking.lines("say x")
    assert (first["model"], last["text"]) == ("mine-1", "x")
    assert first["why"] == f"{asking.config} says so"
    code, _, err = asking.run("--model", "anthropic:claude-9", "say x")
    assert code == 6
    assert "set ANTHROPIC_API_KEY" in err
    assert len(asking.provider.requests) == 1


# ------------------------------------------------------------------------------ as a real process


@pytest.fixture
def program_on(shell: Shell, asking: Asking, fast_program: Path) -> Shell:
    shell.command = [str(fast_program)]
    shell.environment |= {**environment(asking.provider.url), "HOLDFAST_CONFIG": os.devnull}
    return shell


def _await(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def _begun(process: subprocess.Popen[bytes]) -> bytes:
    """Read until the reply has begun."""
    assert process.stdout is not None
    said = os.read(process.stdout.fileno(), 100)
    assert said.startswith(b"word-1")
    return said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_in_mid_reply_keeps_what_was_said(
    program_on: Shell, asking: Asking, number: signal.Signals, code: int
) -> None:
    """The turn is sealed as cancelled, the store closed, and the next run goes on."""
    with program_on.start("run", "--session", "a", "slow 1000") as process:
        said = _begun(process)
        process.send_signal(number)
        rest, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (code, b"")
    assert not [*program_on.store.parent.glob("*-wal")]  # the store was closed
    _await(lambda: asking.provider.left == 1)
    with holdfast.open(program_on.store) as store:
        session = store.get("a")
        assert not session.interrupted
        [turn] = session.turns()
        [_, reply] = session.messages()
    assert turn.state == "cancelled"
    assert reply.status == "partial"
    assert (said + rest).decode() == f"{reply.text}\n"


def test_a_signal_before_there_is_a_reply_ends_it_too(program_on: Shell, asking: Asking) -> None:
    with program_on.start("run", "--json", "hang") as process:
        assert process.stdout is not None
        while b'"model_called"' not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    last = json.loads(rest.splitlines()[-1])
    assert (last["type"], last["state"], last["exit_code"]) == ("result", "cancelled", 143)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_beginning_is_not_lost(
    program_on: Shell, number: signal.Signals
) -> None:
    """Whatever the program does at that moment, it ends, and no turn stays open."""
    with program_on.start("run", "--session", "a", "--json", "slow 1000") as process:
        assert process.stdout is not None
        assert b'"started"' in process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    with holdfast.open(program_on.store) as store:
        session = store.get("a")
        assert not session.interrupted
        assert {turn.state for turn in session.turns()} <= {"cancelled"}


def test_a_reader_who_goes_away_ends_it(program_on: Shell) -> None:
    """As `holdfast run … | head -1` does; what was said until then is kept."""
    with program_on.start("run", "--session", "a", "slow 1000") as process:
        _begun(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (141, b"")
    with holdfast.open(program_on.store) as store:
        [turn] = store.get("a").turns()
        assert turn.state == "cancelled"
        assert store.get("a").messages()[-1].status == "partial"


def test_a_reader_who_does_not_read_cannot_hold_it_up(program_on: Shell) -> None:
    """The turn is sealed at once, though the reply cannot be written; then the end is forced."""
    with program_on.start("run", "--session", "a", "slow 100000 0.00001") as process:
        _begun(process)
        _await(lambda: _is_full(process))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    with holdfast.open(program_on.store) as store:
        session = store.get("a")
        [turn] = session.turns()
        assert (turn.state, session.interrupted) == ("cancelled", False)
        assert session.messages()[-1].text.startswith("word-1 word-2")


def _is_full(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the pipe has no room for more."""
    assert process.stdout is not None
    waiting = array.array("i", [0])
    fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, waiting)
    return waiting[0] > 60_000
