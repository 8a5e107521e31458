"""`holdfast chat` without a terminal: lines in, plain text out, and an exit code."""

import os
import signal
from contextlib import suppress

from tests.agent.provider import Provider
from tests.cli.chat.environment import Place
from tests.cli.shell import RAW


def test_lines_are_answered_in_order_and_it_ends_with_its_input(place: Place) -> None:
    """Markdown stays as it was written, commands work, and nothing is drawn."""
    ran = place.plain("hello\n\nsay **bold** word\n/usage\nno newline at the end")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "holdfast with mock-1 ($HOLDFAST_MODEL says so)"
    assert lines[1].startswith("a new conversation")
    said = [line for line in lines if line.startswith(("You said", "**bold**", "mock-1"))]
    assert said[:2] == ["You said: hello", "**bold** word"]
    assert said[2].split()[0] == "mock-1"
    assert said[3] == "You said: no newline at the end"
    assert "holdfast chat --resume" in lines[-1]
    assert "\x1b" not in ran.out
    assert [m.role for m in place.messages()] == ["user", "assistant"] * 3


def test_the_next_run_goes_on(place: Place, provider: Provider) -> None:
    """What the model is sent then is the whole conversation."""
    place.plain("hello\n")
    assert "continuing 'A title by the model'" in place.plain("again\n").out
    sent = provider.replies()[-1]["messages"]
    assert [m["role"] for m in sent if m["role"] != "system"] == ["user", "assistant", "user"]


def test_the_exit_code_tells_whether_the_last_line_was_answered(place: Place) -> None:
    failed = place.plain("fail 400\n")
    assert failed.code == 1
    assert "failed: " in failed.out
    place.shell.environment |= {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    missing = place.plain("hello\n")
    assert missing.code == 6
    assert "set OPENAI_API_KEY" in missing.out
    wrong = place.plain("", "--resume", "nobody")
    assert wrong.code == 3
    assert "nobody" in wrong.err


def test_with_yes_nobody_has_to_be_asked(place: Place) -> None:
    line = 'call write_file {"path": "a.txt", "content": "one"}\n'
    assert "✓ write_file  a.txt" in place.plain(line, "--yes").out
    assert (place.cwd / "a.txt").read_text() == "one"


def test_what_a_model_says_cannot_take_a_terminal_over(place: Place, provider: Provider) -> None:
    provider.say_next({"say": "\x1b[2J\x1b]0;owned\x07 \u202egnp 👩\u200d💻 \x9b31m end"})
    said = place.plain("hello\n").out
    assert not RAW & set(said)
    assert r"\x1b[2J\x1b]0;owned\x07 \u202egnp 👩‍💻 \x9b31m end" in said


def test_sigterm_in_mid_reply_keeps_what_came(place: Place, provider: Provider) -> None:
    """The standard input is still open then; nobody waits for it."""
    words = " ".join(f"word-{n}" for n in range(1, 100))
    provider.say_next({"say": words, "hang": 21})  # behind word-20
    with place.start() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"count\n")
        process.stdin.flush()
        heard = b""
        while b"word-20" not in heard:
            heard += os.read(process.stdout.fileno(), 65536)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 143
    [turn] = place.turns()
    assert turn.state == "cancelled"
    assert "word-20" in place.messages()[-1].text


def test_options_that_exclude_each_other_are_refused(place: Place) -> None:
    for options in (["--new", "--resume", "a"], ["--at", "3"], ["--json"]):
        assert place.plain("", *options).code == 2


def test_a_line_that_never_ends_is_refused_and_what_came_before_is_kept(place: Place) -> None:
    """It took all memory, and time by the square of its length."""
    process = place.start()
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    taken = 0
    with suppress(BrokenPipeError):
        while True:
            process.stdin.write(b"a" * 1_000_000)
            taken += 1_000_000
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdin = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert taken < 270_000_000
    assert b"a line on standard input is over the limit of 268,435,456 bytes" in err
    assert [message.role for message in place.messages()] == ["user", "assistant"]
