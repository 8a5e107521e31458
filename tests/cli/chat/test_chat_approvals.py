"""What "always" allows, and what it does not."""

import asyncio
import io

import pytest

from holdfast import ToolCall
from holdfast.agent.tools.protocol import Ask
from holdfast.cli.chat.approval_prompt import Approvals, grant_of, print_request
from holdfast.cli.output.screen import PlainScreen


def _command(command: str) -> ToolCall:
    return ToolCall("1", "run_command", {"command": command})


def _write(name: str = "write_file") -> ToolCall:
    return ToolCall("1", name, {"path": "a.txt", "content": "x"})


def _decided(first: ToolCall, second: ToolCall, *, other_session: bool = False) -> bool:
    """Whether the second call is allowed without a question when "always" was said to the first."""
    asked: list[str] = []

    async def ask(label: str) -> str | None:
        asked.append(label)
        return "always" if len(asked) == 1 else "no"

    async def play() -> bool | str:
        approvals = Approvals(lambda _: None, ask)
        approvals.session_id = "one"
        assert await approvals(Ask(first, "first")) is True
        approvals.session_id = "two" if other_session else "one"
        return await approvals(Ask(second, "second"))

    allowed = asyncio.run(play()) is True
    assert allowed == (len(asked) == 1)
    return allowed


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        (_command("git status"), _command("git status --short"), True),
        (_command("git status"), _command("git push"), False),
        (_command("git status"), _command("git statusx"), False),
        (_command("git status"), _command("git status; rm -rf ~"), False),
        (_command("git status"), _command("git status $(evil)"), False),
        (_command("ls | wc"), _command("ls | wc"), True),
        (_command("ls | wc"), _command("ls | wc; rm x"), False),
        (_command("ls"), _write(), False),
        (_write(), _write("edit_file"), True),
        (_write(), _command("ls"), False),
        (ToolCall("1", "send", {"to": "a"}), ToolCall("2", "send", {"to": "b"}), True),
        (ToolCall("1", "send"), ToolCall("2", "resend"), False),
        (ToolCall("1", "run_command", "nonsense"), _command("ls"), False),
        (ToolCall("1", "run_command", '{"command": "ls"}'), _command("ls -l"), True),
    ],
)
def test_always_holds_for_what_the_question_says(
    first: ToolCall, second: ToolCall, allowed: bool
) -> None:
    assert _decided(first, second) == allowed


def test_always_does_not_cover_a_sensitive_call_and_is_not_offered_for_one() -> None:
    """A model could allow itself everything in `holdfast.toml`."""
    labels: list[str] = []

    async def ask(label: str) -> str | None:
        labels.append(label)
        return "always"

    async def play() -> list[bool | str]:
        approvals = Approvals(lambda _: None, ask)
        asked = (Ask(_write(), "a"), Ask(_write(), "b", sensitive=True), Ask(_write(), "c"))
        return [await approvals(one) for one in asked]

    assert asyncio.run(play()) == [True, "always", True]
    assert [("always" in label) for label in labels] == [True, False]


def test_always_ends_with_the_session() -> None:
    assert not _decided(_command("ls"), _command("ls"), other_session=True)


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("y", True),
        ("Yes", True),
        ("n", False),
        ("", False),
        ("no not there", "not there"),
        ("n not there", "not there"),
        ("rather not", "rather not"),
    ],
)
def test_what_is_no_answer_is_a_no_with_a_reason(answer: str, decision: bool | str) -> None:
    async def ask(_: str) -> str | None:
        return answer

    async def play() -> bool | str:
        return await Approvals(lambda _: None, ask)(Ask(_command("ls"), "ls"))

    assert asyncio.run(play()) == decision


def test_the_question_says_what_always_would_allow() -> None:
    assert str(grant_of(_command("git status"))) == "`git status …`"
    assert str(grant_of(_command("a; b"))) == "this very command"
    assert str(grant_of(_write())) == "changes to files"
    assert str(grant_of(ToolCall("1", "send"))) == "send"


@pytest.mark.parametrize(
    ("filler", "length"), [("\n" * 50, "51 lines, 75 characters"), (" " * 2_000, "1 line, 2,025 c")]
)
def test_a_long_question_says_how_long_it_is(filler: str, length: str) -> None:
    """What counts may have been pushed out of sight by empty lines, or by a line that wraps."""
    out = io.StringIO()
    command = f"rm -rf /{filler}ls"
    print_request(PlainScreen(out), Ask(_command(command), f"run in /work\n$ {command}"))
    lines = out.getvalue().splitlines()
    assert lines[1] == "  ? run_command  run in /work"
    assert lines[2].startswith("    $ rm -rf /")
    assert lines[-1].startswith(f"    read all of it: {length}")


def test_always_for_a_long_command_does_not_push_the_question_out_of_sight() -> None:
    command = _command("ls " + "a" * 5_000)
    assert str(grant_of(command)) == "this very command"
    assert _decided(command, command)
    assert not _decided(command, _command("ls " + "a" * 5_001))
