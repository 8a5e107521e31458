"""Every command, as a program, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any, Self

import pytest

import holdfast
from holdfast import Message
from holdfast.operations import purge_steps
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES
from tests.cli.shell import Shell, crash

# ------------------------------------------------------------------------------- a store to be


@pytest.mark.parametrize("command", [["ls"], ["doctor"], ["recover", "--all"]])
def test_looking_makes_no_store(shell: Shell, command: list[str]) -> None:
    """Where there is no store yet that is no error, and nothing is created."""
    assert shell.run(*command).code == 0
    assert shell.run(*command, "--json").code == 0
    assert not shell.store.parent.exists()


def test_ls_without_a_store_says_how_to_begin(shell: Shell) -> None:
    """The line it gives works."""
    said = shell.ok("ls")
    assert f"no store at {shell.store} yet" in said
    assert "holdfast append" in said
    assert shell.json("ls") == []


@pytest.mark.parametrize("command", [["show", "x"], ["log"], ["recover", "x"], ["backup", "to.db"]])
def test_without_a_store_there_is_nothing_to_find(shell: Shell, command: list[str]) -> None:
    """A command that needs one says that there is none, and creates nothing."""
    ran = shell.run(*command)
    assert ran.code == 3
    assert "there is no store at" in ran.err
    assert not shell.store.parent.exists()


def test_no_create_makes_no_store(shell: Shell) -> None:
    """`append --no-create` begins neither a session nor a store."""
    assert shell.run("append", "--no-create", "a", "hello").code == 3
    assert not shell.store.parent.exists()


# ------------------------------------------------------------------------------------------- ls


def test_ls_lists_sessions_newest_first(talked: Shell) -> None:
    """With the whole id in a pipe, so that it can be cut out and used."""
    talked.ok("append", "other", "Good morning")
    [heading, first, second] = talked.ok("ls").splitlines()
    columns = heading.split()
    assert columns[:5] == ["ID", "KEY", "STATE", "ACTIVE", "MESSAGES"]
    assert columns[-1] == "TITLE"
    assert "other" in first
    assert "Good morning" in first
    assert "just now" in first or "s ago" in first
    assert "A parcel" in second
    assert talked.ok("show", second.split()[0]).startswith("A parcel\n")


def test_ls_in_json_is_a_list_of_sessions(talked: Shell) -> None:
    """Times are ISO 8601, amounts are texts."""
    [info] = talked.json("ls")
    assert (info["key"], info["title"], info["messages"]) == ("support-42", "A parcel", 7)
    assert info["updated_at"].endswith("Z")
    assert info["cost"] == "0.01"


def test_ls_can_be_narrowed_down(talked: Shell) -> None:
    """By words, scope and agent; a limit says when there is more."""
    talked.ok("append", "other", "Good morning")
    assert [s["key"] for s in talked.json("ls", "--text", "PARCEL")] == ["support-42"]
    assert [s["key"] for s in talked.json("ls", "--scope", "telegram")] == ["support-42"]
    assert talked.json("ls", "--agent", "nobody") == []
    assert talked.ok("ls", "--agent", "nobody") == "No sessions.\n"
    assert "There are more" in talked.ok("ls", "--limit", "1")
    assert "There are more" not in talked.ok("ls", "--limit", "2")


def test_ls_marks_what_a_crash_left_open(crashed: Shell) -> None:
    """So that it is seen at once."""
    assert "interrupted" in crashed.ok("ls")
    assert crashed.json("ls")[0]["interrupted"] is True


# ----------------------------------------------------------------------------------------- show


def test_show_tells_turns_tools_and_texts(talked: Shell) -> None:
    """What was said, by whom, in which turn, and what became of each tool call."""
    said = talked.ok("show", "support-42")
    for line in (
        "  scope    telegram",
        '  metadata {"channel": 7}',
        "  holds    7 messages, 2 turns, 1,234 tokens, cost 0.01",
        "  Where is my parcel?",
        "  thinking  Look it up.",
        '  → track  done  {"id": 17}',
        "  → guess  failed",
        "#3 ← track  in Oslo",
        "#4 ← guess  failed  no idea",
        "   TimeoutError: the model did not answer",
        "── outside of a turn ──",
        '  raw telegram  {"sticker": 5}',
    ):
        assert line in said.splitlines()
    assert "── turn 1 sealed · " in said
    assert " · gpt-9 · run run-1 · 1,234 tokens · cost 0.01 ──" in said
    assert "── turn 2 failed · " in said


def test_show_finds_a_session_by_any_name(talked: Shell) -> None:
    """By key, title, run, id, and a part of the id."""
    whole = talked.json("ls")[0]["id"]
    for ref in ("support-42", "A parcel", "run-1", whole, whole[:6]):
        assert talked.json("show", ref)["session"]["id"] == whole


def test_show_in_json_tells_all_there_is(talked: Shell) -> None:
    """Messages, turns with their ledger, the head."""
    found = talked.json("show", "support-42")
    assert [m["seq"] for m in found["messages"]] == [1, 2, 3, 4, 5, 6, 7]
    assert found["head"] == {"branch": 1, "seq": 7}
    assert [t["state"] for t in found["turns"]] == ["sealed", "failed"]
    assert [t["outcome"] for t in found["turns"][0]["tools"]] == ["done", "error"]
    assert found["messages"][1]["parts"][2]["name"] == "track"
    assert found["damage"] == found["queued"] == []


def test_show_with_a_limit_shows_the_newest(talked: Shell) -> None:
    """And says how many came before; turns that ended before are left out."""
    said = talked.ok("show", "support-42", "--limit", "2")
    assert "… 5 earlier messages …" in said
    assert "When will it come?" in said
    assert "It is in Oslo." not in said
    assert "turn 1" not in said
    assert "── turn 2 failed" in said
    assert [m["seq"] for m in talked.json("show", "support-42", "-n", "2")["messages"]] == [6, 7]


def test_show_raw_gives_the_texts_byte_for_byte(shell: Shell) -> None:
    """Nothing is escaped and nothing added but the end of a line; lone surrogates survive."""
    with holdfast.open(shell.store) as store:
        session = store.session("a")
        session.append(Message.user("one\n\x1b[31mtwo\n"), Message.user("\ud800\u202e three"))
    with shell.start("show", "--raw", "a") as process:
        assert process.stdout is not None
        assert process.stdout.read() == (
            b"one\n\x1b[31mtwo\n" + "\ud800\u202e three\n".encode("utf-8", "surrogatepass")
        )


def test_show_marks_what_broke_off_and_what_is_unknown(crashed: Shell) -> None:
    """Before recovery it says what to do, after it what was kept."""
    said = crashed.ok("show", "support-42")
    assert "── turn 3 left open by a crash · " in said
    assert '  → send  started, no result  {"to": "Oslo"}' in said
    assert "holdfast recover " in said
    crashed.ok("recover", "support-42")
    said = crashed.ok("show", "support-42")
    assert "── turn 3 interrupted · " in said
    assert "PARTIAL: it was cut short\n  It is alrea\n" in said
    assert "  → send  outcome unknown  " in said
    assert "  → notify  not run" in said
    assert "holdfast recover" not in said


def test_show_marks_a_damaged_message_and_shows_the_others(talked: Shell) -> None:
    """One bad row costs only itself."""
    flip(talked.store, b'"in Oslo"', b'"in 0slo"')
    said = talked.ok("show", "support-42")
    assert "#3 DAMAGED\n" in said
    assert "in 0slo" in said
    assert "It is in Oslo." in said
    assert "Where is my parcel?" in said
    assert [m["status"] for m in talked.json("show", "support-42")["messages"]].count(
        "damaged"
    ) == 1
    assert talked.json("show", "support-42")["damage"][0]["seq"] == 3


def test_show_shows_input_that_waits(shell: Shell) -> None:
    """What was queued is part of the conversation to come."""
    with holdfast.open(shell.store) as store:
        store.session("a").enqueue("And then?")
    assert "waits for the next turn\n  And then?\n" in shell.ok("show", "a")
    assert shell.json("show", "a")["queued"][0]["message"]["parts"][0]["text"] == "And then?"


def flip(store: Path, old: bytes, new: bytes) -> None:
    """Change bytes in the file behind everybody's back: the first place where they are."""
    data = store.read_bytes()
    assert old in data
    store.write_bytes(data.replace(old, new, 1))


# --------------------------------------------------------------------------------------- append


def test_append_begins_a_session_and_goes_on_with_it(shell: Shell) -> None:
    """It prints where the message went."""
    assert shell.ok("append", "a", "one").startswith("new session a (")
    assert shell.ok("append", "a", "two").rstrip().endswith("): branch 1, seq 2")
    third = shell.json("append", "a", "three", "--role", "assistant")
    assert third["head"] == {"branch": 1, "seq": 3}
    assert third["created"] is False
    messages = shell.json("show", "a")["messages"]
    assert [(m["role"], m["parts"][0]["text"]) for m in messages] == [
        ("user", "one"),
        ("user", "two"),
        ("assistant", "three"),
    ]
    assert messages[2]["id"] == third["message"]


@pytest.mark.parametrize("arguments", [["a"], ["a", "-"]])
def test_append_reads_standard_input(shell: Shell, arguments: list[str]) -> None:
    """One newline at the end belongs to the shell, all else to the text."""
    shell.ok("append", *arguments, stdin="  näh\n\nzwei\n\n".encode())
    assert shell.ok("show", "--raw", "a") == "  näh\n\nzwei\n"


def test_append_takes_a_text_as_large_as_it_comes(shell: Shell) -> None:
    """Half a megabyte and more, exactly."""
    text = "word " * 200_000
    shell.ok("append", "a", stdin=text.encode())
    assert shell.ok("show", "--raw", "a") == text + "\n"


def test_append_with_an_id_stores_once(shell: Shell) -> None:
    """However often it is run; another text with that id is refused."""
    for _ in range(3):
        assert shell.json("append", "a", "one", "--id", "i1")["head"]["seq"] == 1
    ran = shell.run("append", "a", "two", "--id", "i1")
    assert ran.code == 4
    assert "already stored at seq 1 with another body" in ran.err
    assert shell.json("ls")[0]["messages"] == 1


def test_append_goes_through_while_a_turn_is_open(shell: Shell) -> None:
    """It needs no turn of its own."""
    with holdfast.open(shell.store) as store, store.session("a").turn():
        shell.ok("append", "a", "psst")
        assert "open" in shell.ok("ls")


def test_append_finds_a_session_by_its_id(talked: Shell) -> None:
    """The id that `ls` shows on a terminal, eight characters, is enough."""
    whole = talked.json("ls")[0]["id"]
    for ref in (whole, whole[:8]):
        assert talked.json("append", ref, "hi")["session"] == whole


@pytest.mark.parametrize("name", ["A parcel", "run-1", "prefix"])
def test_append_does_not_guess_which_session_is_meant(talked: Shell, name: str) -> None:
    """A title or a few characters of an id may as well be a new key: nothing is stored."""
    whole = talked.json("ls")[0]["id"]
    name = whole[:5] if name == "prefix" else name
    ran = talked.run("append", name, "hi")
    assert ran.code == 3
    assert whole in ran.err
    assert talked.json("ls")[0]["messages"] == 7
    assert talked.json("append", name, "hi", "--no-create")["session"] == whole
    made = talked.json("append", name, "hi", "--create")
    assert made["created"] is True
    assert made["key"] == name


def test_append_to_a_name_that_the_store_gives(shell: Shell) -> None:
    """It means a session that is there, and never begins one."""
    for name in ("@latest", "@latest:web", "@pinned"):
        for how in ([], ["--create"], ["--no-create"]):
            ran = shell.run("append", name, "hi", *how)
            assert (ran.code, ran.out) == (3, "")
    with holdfast.open(shell.store) as store:
        assert store.stats().sessions == 0
        store.session("web", scope="web").update(pinned=True)
        store.session("last")
    for name, key in (("@latest:web", "web"), ("@latest", "web"), ("@pinned", "web")):
        assert shell.json("append", name, "hi")["key"] == key
    assert shell.json("show", "@latest")["session"]["messages"] == 3


@pytest.mark.parametrize("command", ["show", "log", "tree", "undo", "pin", "trash", "fork"])
def test_every_command_takes_every_name(talked: Shell, command: str) -> None:
    """Titles in any case, and what the store gives."""
    for ref in ("a PARCEL", "@latest", "@latest:telegram"):
        talked.ok(command, ref)
        if command == "fork":  # That one is the latest now.
            break
        if command == "trash":
            talked.ok("restore", "A parceL")


@pytest.mark.parametrize("how", ["argument", "stdin"])
def test_append_refuses_what_is_not_utf8(shell: Shell, how: str) -> None:
    """Half-read text is not stored; what to do is said."""
    if how == "stdin":
        ran = shell.run("append", "a", stdin=b"caf\xe9\n")
    else:
        ran = shell.run("append", "a", os.fsdecode(b"caf\xe9"))
    assert ran.code == 2
    assert "not UTF-8 (byte 4)" in ran.err
    assert not shell.store.exists()


@pytest.mark.parametrize("text", [b"", b"\n"])
def test_append_refuses_to_store_nothing(shell: Shell, text: bytes) -> None:
    """An empty pipe is a mistake upstream."""
    ran = shell.run("append", "a", stdin=text)
    assert ran.code == 2
    assert "The text is empty" in ran.err
    assert not shell.store.exists()


# -------------------------------------------------------------------------------------- recover


def test_recover_keeps_all_and_says_what_is_unknown(crashed: Shell) -> None:
    """Recovering again finds nothing."""
    said = crashed.ok("recover", "support-42")
    assert "is closed as interrupted, with 3 messages" in said
    assert "kept what was streamed (11 characters) as message 10, partial" in said
    assert "tool call call_a had started: its outcome is unknown" in said
    assert "tool call call_b was not run" in said
    assert crashed.ok("recover", "support-42").endswith(": nothing to recover\n")
    assert crashed.ok("recover", "--all") == "Nothing to recover.\n"


def test_recover_all_takes_every_interrupted_session(crashed: Shell) -> None:
    """And leaves alone the one whose holder is alive."""
    crash(crashed.store, "second")
    with holdfast.open(crashed.store) as store, store.session("held").turn() as turn:
        turn.user("I am at work")
        found = crashed.json("recover", "--all")
        assert store.session("held").info().state == "open"
    keys = {info["id"]: info["key"] for info in crashed.json("ls")}
    assert {keys[item["session"]] for item in found} == {"support-42", "second"}
    assert found[0]["recovered"]["unknown_tools"] == ["call_a"]
    assert found[0]["recovered"]["partial"]["status"] == "partial"


def test_recover_leaves_a_living_turn_alone(shell: Shell) -> None:
    """It names who holds it."""
    with holdfast.open(shell.store) as store, store.session("a").turn():
        ran = shell.run("recover", "a")
    assert ran.code == 4
    assert f"held by pid {os.getpid()}" in ran.err


# ------------------------------------------------------------------------------------------ log


def test_log_prints_the_newest_messages(talked: Shell) -> None:
    """Oldest first, as they were said."""
    said = talked.ok("log", "-n", "2", "support-42")
    assert [line.split(" · ")[0] for line in said.splitlines() if line[:1] == "#"] == [
        "#6 user",
        "#7 user",
    ]
    lines = talked.ok("log", "-n", "2", "support-42", "--json").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [6, 7]


def test_log_of_the_store_tells_who_was_written_to(talked: Shell) -> None:
    """One line for each session, the newest last."""
    talked.ok("append", "other", "Good\nmorning")
    [first, second] = talked.ok("log").splitlines()
    assert "  support-42  #7 user  1 part" in first
    assert second.endswith("  other  #1 user  Good morning")
    [line] = talked.ok("log", "-n", "1", "--json").splitlines()
    event = json.loads(line)
    assert (event["key"], event["head"]["seq"]) == ("other", 1)
    assert event["message"]["parts"][0]["text"] == "Good\nmorning"


def test_log_follows_a_session(talked: Shell) -> None:
    """Messages of other processes arrive in order, each once, as they are written."""
    with following(talked, "log", "-f", "-n", "1", "support-42", "--json") as lines:
        assert lines.next()["seq"] == 7
        for number in range(8, 12):
            talked.ok("append", "support-42", f"text {number}")
            got = lines.next()
            assert (got["seq"], got["parts"][0]["text"]) == (number, f"text {number}")
    assert lines.rest == []


def test_log_follows_the_whole_store(talked: Shell) -> None:
    """Also sessions that did not exist when it started."""
    with following(talked, "log", "-f", "-n", "0", "--json") as lines:
        # It has begun to follow at the latest when it tells of the first write it sees.
        done = threading.Event()
        writer = threading.Thread(target=write_until, args=(talked.store, done))
        writer.start()
        assert lines.next()["key"] == "new one"
        done.set()
        writer.join()


def write_until(store: Path, done: threading.Event) -> None:
    with holdfast.open(store) as opened:
        session = opened.session("new one")
        while not done.wait(0.1):
            session.append(Message.user("again"))


class following:  # noqa: N801 - reads as a verb
    """Runs a command that goes on, and ends it by Ctrl-C."""

    def __init__(self, shell: Shell, *arguments: str) -> None:
        self._process = shell.start(*arguments)
        self.rest: list[bytes] = []

    def next(self) -> Any:  # noqa: ANN401 - it is whatever was printed
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        with self._process as process:
            process.send_signal(2)
            out, err = process.communicate(timeout=30)
        if problem[0] is None:
            self.rest = out.splitlines()
            assert (process.returncode, err) == (130, b"")


# --------------------------------------------------------------------------------------- doctor


def test_doctor_finds_a_sound_store_well(talked: Shell) -> None:
    """It tells engine, journal mode, durability, permissions, contents."""
    said = talked.ok("doctor")
    for word in (
        "engine: SQLite 3.",
        "journal mode: wal",
        "durability: power",
        "No problems found",
    ):
        assert word in said
    assert "permissions of agent.db: 600" in said
    assert "contents: 1 session, 7 messages, 2 turns" in said
    finding = talked.json("doctor")
    assert finding["ok"] is True
    assert finding["stats"]["messages"] == 7
    assert all(check["ok"] for check in finding["checks"])


def test_doctor_changes_nothing(crashed: Shell) -> None:
    """Not a byte of the store, whatever it finds."""
    before = crashed.store.read_bytes()
    assert crashed.run("doctor").code == 1
    assert crashed.store.read_bytes() == before
    assert crashed.json("ls")[0]["interrupted"] is True


@pytest.fixture
def half_purged(talked: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a shell whose store has a purge that was interrupted after its first transaction."""
    with holdfast.open(talked.store) as store, monkeypatch.context() as patch:
        session = store.session("large")
        session.append(*(Message.user(f"secret {n}") for n in range(2 * MAX_STEP_MESSAGES)))
        patch.setattr(purge_steps, "steps", lambda _: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception):
            store.purge("large")
    return talked


def test_a_purge_that_was_interrupted_is_finished_when_it_is_typed_again(
    half_purged: Shell,
) -> None:
    """Its session is no longer found, but no byte of it is left."""
    assert half_purged.run("purge", "--yes", "large").code != 0
    assert half_purged.run("doctor").code == 0
    with holdfast.open(half_purged.store) as store:
        assert store.finish_purges() == 0


def test_doctor_tells_of_a_purge_that_was_interrupted(half_purged: Shell) -> None:
    """And what it advises finishes it."""
    ran = half_purged.run("doctor")
    assert ran.code == 1
    assert "purges: 1 purge unfinished: still running, or interrupted" in ran.out
    assert "`holdfast doctor --fix`" in ran.out
    assert f"{2 * MAX_STEP_MESSAGES:,} messages erased" in half_purged.run("doctor", "--fix").out
    assert half_purged.run("doctor").code == 0


def test_doctor_tells_whether_holders_live(crashed: Shell) -> None:
    """A dead one is a problem, with the command that helps; a living one is not."""
    with holdfast.open(crashed.store) as store, store.session("held").turn():
        ran = crashed.run("doctor")
        finding = json.loads(crashed.run("doctor", "--json").out)
    assert ran.code == 1
    assert re.search(rf"ok    turn 1 of held: started .*, held by pid {os.getpid()} on ", ran.out)
    assert "WRONG  turn 3 of support-42: " in ran.out
    assert finding["ok"] is False
    [wrong] = [check for check in finding["checks"] if not check["ok"]]
    assert crashed.run(*wrong["hint"].split()[1:]).code == 0
    assert crashed.run("doctor").code == 0


def test_doctor_names_what_is_damaged(talked: Shell) -> None:
    """Which session, which message, and what to do."""
    whole = talked.json("ls")[0]["id"]
    flip(talked.store, b'"in Oslo"', b'"in 0slo"')
    ran = talked.run("doctor")
    assert ran.code == 1
    assert f"{whole} #3" in ran.out
    assert "hint: restore a backup" in ran.out
    finding = json.loads(talked.run("doctor", "--json").out)
    assert [(d["session_id"], d["seq"]) for d in finding["damage"]] == [(whole, 3)]


def test_doctor_minds_open_permissions(talked: Shell) -> None:
    """A conversation is nobody else's; the hint repairs it."""
    talked.store.chmod(0o644)
    ran = talked.run("doctor")
    assert ran.code == 1
    assert f"hint: chmod 600 {talked.store}" in ran.out


@pytest.mark.parametrize("what", ["garbage", "half", "empty"])
def test_doctor_reports_a_store_that_cannot_be_opened(talked: Shell, what: str) -> None:
    """It is a finding like any other, not a crash; the file is left as it is."""
    data = talked.store.read_bytes()
    wreck = {"garbage": b"not a database " * 500, "half": data[: len(data) // 2], "empty": b""}
    talked.store.write_bytes(wreck[what])
    ran = talked.run("doctor")
    assert ran.code == 1
    assert "WRONG" in ran.out
    assert "hint:" in ran.out
    assert ran.err == ""
    assert json.loads(talked.run("doctor", "--json").out)["ok"] is False
    assert talked.store.read_bytes() == wreck[what]


def test_doctor_goes_on_behind_what_it_cannot_read(talked: Shell) -> None:
    """Torn pages make several sections fail, and each says so."""
    data = bytearray(talked.store.read_bytes())
    data[4096 * 2 : 4096 * 12] = b"\xff" * (4096 * 10)
    talked.store.write_bytes(data)
    ran = talked.run("doctor")
    assert ran.code == 1
    assert ran.err == ""
    assert "engine: SQLite" in ran.out
    assert ran.out.count("WRONG") >= 2


# --------------------------------------------------------------------------------------- backup


def test_backup_is_a_store_like_any_other(talked: Shell, tmp_path: Path) -> None:
    """Made while another process has the store open and writes."""
    copy = tmp_path / "copy.db"
    with holdfast.open(talked.store) as store, store.session("held").turn() as turn:
        turn.user("I am at work")
        assert talked.ok("backup", str(copy)).endswith(", verified\n")
    before = talked.json("show", "support-42")["messages"]
    assert talked.json("show", "support-42", "--store", str(copy))["messages"] == before
    report = talked.json("backup", str(tmp_path / "again.db"))
    assert (report["sessions"], report["messages"]) == (2, 8)


def test_doctor_advises_what_helps_against_another_stores_log(
    talked: Shell, tmp_path: Path
) -> None:
    """Salvaging would not: the file is whole, and the log is not its own."""
    log, copy = Path(f"{talked.store}-wal"), tmp_path / "copy.db"
    with holdfast.open(talked.store) as store:
        store.session("late").append(Message.user("Is it there?"))
        left = log.read_bytes()
        store.backup(copy)
    talked.store.write_bytes(copy.read_bytes())
    log.write_bytes(left)
    log.chmod(0o600)
    ran = talked.run("doctor")
    assert ran.code == 1
    assert "hint: `holdfast restore-backup FILE` restores a backup" in ran.out
    assert "doctor --fix" not in ran.out
    talked.ok("restore-backup", "--yes", str(copy))
    assert talked.run("doctor").code == 0


def test_restore_backup_replaces_the_store_and_keeps_it(talked: Shell, tmp_path: Path) -> None:
    """What was said since the backup is in the file that was set aside."""
    copy = tmp_path / "copy.db"
    talked.ok("backup", str(copy))
    talked.ok("append", "support-42", "One more thing.")
    report = talked.json("restore-backup", "--yes", str(copy))
    assert "One more thing." not in talked.ok("show", "support-42")
    assert "One more thing." in talked.ok("show", "support-42", "--store", report["replaced"])
    said = talked.ok("restore-backup", "--yes", str(copy))
    assert ", verified\n  what was there is now " in said


def test_restore_backup_asks_first(talked: Shell, tmp_path: Path) -> None:
    """Where it cannot ask, nothing is restored without --yes."""
    copy = tmp_path / "copy.db"
    talked.ok("backup", str(copy))
    ran = talked.run("restore-backup", str(copy))
    assert (ran.code, "nothing was restored" in ran.err) == (2, True)
    ran = talked.run("restore-backup", "--yes", str(tmp_path / "none.db"))
    assert (ran.code, "does not exist" in ran.err) == (2, True)


def test_backup_never_replaces_a_file(talked: Shell, tmp_path: Path) -> None:
    """Not even an empty one."""
    (tmp_path / "there").write_text("mine")
    ran = talked.run("backup", str(tmp_path / "there"))
    assert ran.code == 2
    assert "exists already" in ran.err
    assert (tmp_path / "there").read_text() == "mine"


# ------------------------------------------------------------------------------------ the store


def test_store_is_named_by_option_then_environment(shell: Shell, tmp_path: Path) -> None:
    """A path or a URL; `--store` wins."""
    other = tmp_path / "other.db"
    shell.ok("append", "a", "one", "--store", f"sqlite:///{other}")
    assert other.exists()
    assert not shell.store.exists()
    shell.ok("append", "b", "two")
    assert [s["key"] for s in shell.json("ls")] == ["b"]
    assert [s["key"] for s in shell.json("ls", "--store", str(other))] == ["a"]


def test_the_users_own_store_is_private(shell: Shell, tmp_path: Path) -> None:
    """Without an address it lies in the state directory, for nobody else to read."""
    shell.environment["HOLDFAST_URL"] = ""
    shell.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    shell.ok("append", "a", "one")
    made = tmp_path / "state" / "holdfast" / "holdfast.db"
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.parent.stat().st_mode & 0o777 == 0o700
