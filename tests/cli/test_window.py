"""`holdfast window`: what a model would be sent, for people and for programs."""

from pathlib import Path
from typing import Any, get_args

import pytest

import holdfast
from holdfast import File, Message, ToolCall
from holdfast.cli.commands.window import fold_text
from holdfast.cli.output.screen import cells
from holdfast.testing import legality
from holdfast.values import Provider
from tests.cli.shell import HOSTILE, RAW, Shell, hostile_session
from tests.cli.test_terminal import _STYLES, look

PROVIDERS = get_args(Provider)
each_provider = pytest.mark.parametrize("provider", PROVIDERS)


def _session(store: Path, *messages: Message) -> None:
    with holdfast.open(store) as opened:
        opened.session("a").append(*messages)


def _turns(number: int) -> list[Message]:
    return [
        said
        for n in range(1, number + 1)
        for said in (Message.user(f"question {n}"), Message.assistant(f"answer {n}"))
    ]


def _legal(payload: dict[str, Any]) -> bool:
    found = legality.problems(payload["provider"], payload["messages"], payload["system"])
    assert found == []
    return bool(payload["messages"])


# --------------------------------------------------------------------------------- for people


def test_it_shows_who_says_what(talked: Shell) -> None:
    """Calls and results a line each; then how much it is, and what was left out."""
    said = talked.ok("window", "support-42", "--provider", "anthropic", "--system", "Be kind.")
    assert said.startswith(
        "system\n  Be kind.\n\n"
        "user\n  Where is my parcel?\n\n"
        'assistant\n  Let me see.\n  → track  {"id": 17}\n  → guess  {}\n\n'
        "tool\n  ← track  in Oslo\n  ← guess  failed  no idea\n\n"
        "assistant\n  It is in Oslo.\n\n"
        "user\n  When will it come?\n\n"
        "5 messages for anthropic, about "
    )
    assert said.endswith(" tokens\n  left out  1 empty\n")


@each_provider
def test_every_provider_can_be_looked_at(crashed: Shell, provider: str) -> None:
    """The same words in the same order, though some take each call apart."""
    said = crashed.ok("window", "support-42", "-p", provider, "--system", "Be kind.")
    assert said.startswith("system\n  Be kind.\n\nuser\n")
    shown = ["Where is my parcel?", "→ track", "← guess", "in Oslo.", "Send it again", "→ send"]
    places = [said.index(words) for words in shown]
    assert places == sorted(places)
    assert said.count("\ntool\n") == 2
    assert f" for {provider}, about " in said


def test_it_counts_what_the_provider_is_sent_in_the_providers_word(talked: Shell) -> None:
    assert "\n8 items for openai-responses, " in talked.ok(
        "window", "support-42", "-p", "openai-responses"
    )


def test_it_says_what_was_left_out_and_why(shell: Shell) -> None:
    """With how many, and what else happened to make it fit."""
    _session(shell.store, *_turns(30), Message.user("hidden", metadata={"hidden": True}))
    said = shell.ok("window", "a", "--max-messages", "8")
    assert "question 30" in said
    assert "question 1\n" not in said
    assert "  left out  1 not for models\n" in said
    assert " over the budget\n" in said

    _session(shell.store, Message.user("long " * 500))
    said = shell.ok("window", "a", "--max-tokens", "100", "--reserve", "50")
    [note] = [line for line in said.splitlines() if line.startswith("  note      ")]
    assert "over the budget" in note


def test_a_long_text_is_folded(shell: Shell) -> None:
    """By lines or by letters; it says how much more there is, and programs get all of it."""
    lines = "".join(f"line {n}\n" for n in range(100))
    _session(shell.store, Message.user(lines), Message.assistant("word " * 2_000))
    said = shell.ok("window", "a")
    assert "line 11\n" in said
    assert "line 12\n" not in said
    assert said.count("--json has them\n") == 2
    assert f"  … {10_000 - 1_000:,} more characters; --json has them\n" in said
    assert shell.json("window", "a")["messages"][0]["content"] == lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("one\ntwo", "one\ntwo"),
        ("\n".join("abcdefghijkl"), "\n".join("abcdefghijkl")),
        ("\n".join("abcdefghijklm"), "\n".join("abcdefghijkl")),
        ("x" * 1_001, "x" * 1_000),
    ],
)
def test_folding(text: str, shown: str) -> None:
    """At most twelve lines and a thousand letters."""
    assert fold_text(text) == shown


def test_files_and_thinking_take_a_line(shell: Shell) -> None:
    """A picture is named by its kind and size, not printed."""
    _session(
        shell.store,
        Message.user([File("cat.png", "image/png", b"\x89PNG" * 1_000)]),
        Message.assistant([holdfast.Thinking("A cat,\nsurely.", "c2ln"), holdfast.Text("A cat.")]),
        Message.user("Right."),
    )
    said = shell.ok("window", "a", "-p", "anthropic")
    assert "user\n  file unnamed  image/png · 4.0 kB\n" in said
    assert "assistant\n  thinking  A cat, surely.\n  A cat.\n" in said
    assert "thinking" not in shell.ok("window", "a", "-p", "openai")


def test_time_marks_are_asked_for(talked: Shell) -> None:
    """On the user's words and on nobody else's."""
    said = talked.ok("window", "support-42", "--timestamps")
    marked = [line for line in said.splitlines() if " UTC] " in line]
    assert [line.partition("] ")[2] for line in marked] == [
        "Where is my parcel?",
        "When will it come?",
    ]


def test_an_empty_session_has_nothing_to_send(shell: Shell) -> None:
    """It is said, not an error."""
    shell.ok("new", "--key", "a")
    assert shell.ok("window", "a") == "Nothing to send for openai, about 0 tokens\n"
    assert shell.json("window", "a")["messages"] == []


def test_looking_changes_nothing(crashed: Shell) -> None:
    """Not even what a crash left open is closed."""
    before = crashed.json("show", "support-42")
    crashed.ok("window", "support-42", "--max-tokens", "50")
    assert crashed.json("show", "support-42") == before


# ------------------------------------------------------------------------------- for programs


@each_provider
def test_json_is_the_exact_payload(crashed: Shell, provider: Provider) -> None:
    """Legal for the provider, and the same that the library gives."""
    options = ("--max-tokens", "1000", "--reserve", "100", "--system", "Be kind.", "--timestamps")
    found = crashed.json("window", "support-42", "--provider", provider, *options)
    told = ["provider", "system", "messages", "sources", "tokens", "left_out", "notes"]
    assert list(found) == told
    assert _legal(found)
    with holdfast.open(crashed.store, readonly=True) as opened:
        made = opened.get("support-42").window(
            provider=provider, max_tokens=1_000, reserve=100, system="Be kind.", timestamps=True
        )
    assert found["messages"] == made.messages
    assert found["sources"] == [list(made_of) for made_of in made.sources]
    assert (found["system"], found["tokens"]) == (made.system, made.tokens)
    assert found["left_out"] == [{"count": left.count, "why": left.why} for left in made.left_out]


@each_provider
def test_the_options_reach_the_window(shell: Shell, provider: Provider) -> None:
    """As many messages as asked for, and the first question with them."""
    _session(shell.store, Message.user("the task"), Message.assistant("I begin."), *_turns(60))
    few = shell.json("window", "a", "-p", provider, "--max-messages", "6")
    first = shell.json("window", "a", "-p", provider, "--max-messages", "6", "--keep-first-user")
    assert _legal(few)
    assert _legal(first)
    assert len(few["messages"]) <= 6
    assert "the task" not in str(few["messages"])
    assert "the task" in str(first["messages"])
    assert "answer 60" in str(few["messages"])


# ------------------------------------------------------------------------------------- hostile


@each_provider
def test_nothing_hostile_reaches_a_pipe(shell: Shell, provider: Provider) -> None:
    """People see escapes, programs see JSON in ASCII that is legal."""
    id = hostile_session(shell.store)
    system = HOSTILE.replace("\0", "").replace("\ud800", "")
    said = shell.ok("window", id, "-p", provider, "--system", system)
    assert not RAW & set(said)
    assert r"\x1b[2J\x1b]0;owned\x07" in said
    assert "[bold red]markup[/]" in said
    machine = shell.ok("window", id, "-p", provider, "--json")
    assert machine.isascii()
    assert all(c.isprintable() or c == "\n" for c in machine)
    assert _legal(shell.json("window", id, "-p", provider))


@pytest.mark.parametrize("columns", [100, 36])
@each_provider
def test_a_terminal_shows_it_in_its_width(shell: Shell, provider: str, columns: int) -> None:
    """With styles and no other control sequence, also of hostile and of long texts."""
    id = hostile_session(shell.store)
    call = ToolCall("c", "search_everywhere", {"query": "words " * 60})
    with holdfast.open(shell.store) as opened:
        opened.get(id).append(
            Message.user("several words " * 20),
            Message.assistant(tool_calls=[call]),
            Message.tool("c", "found " * 90),
        )
    said = look(shell, "window", id, "-p", provider, columns=columns, rows=500)
    assert "\x1b[" in said
    plain = _STYLES.sub("", said)
    assert not RAW & set(plain)
    assert max(cells(line.rstrip()) for line in plain.splitlines()) <= columns
    [call_line] = [line for line in plain.splitlines() if "→ search" in line]
    assert call_line.rstrip().endswith("…")


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nobody"], 3, "nobody"),
        (["support-42", "--provider", "acme"], 2, "'acme' is not one of"),
        (["support-42", "--max-tokens", "0"], 2, "--max-tokens"),
        (["support-42", "--max-messages", "-1"], 2, "--max-messages"),
        (["support-42", "--max-tokens", "9", "--reserve", "-1"], 2, "--reserve"),
        (["support-42", "--reserve", "9"], 2, "--reserve is a part of --max-tokens: give both."),
        ([], 2, "Missing argument 'REF'"),
    ],
)
def test_what_makes_no_sense_is_said(
    talked: Shell, arguments: list[str], code: int, complaint: str
) -> None:
    """In one line, with the exit code of its kind."""
    ran = talked.run("window", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert complaint in ran.err


def test_without_a_store_there_is_no_window(shell: Shell) -> None:
    """And none is made by looking."""
    ran = shell.run("window", "a")
    assert ran.code == 3
    assert "there is no store at" in ran.err
    assert not shell.store.exists()
