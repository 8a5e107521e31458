"""`holdfast chat` on a real terminal, as a person uses it."""

import contextlib
import signal
import sqlite3

import holdfast
from holdfast import Message
from holdfast.cli.chat.turn_view import MARK
from tests.agent.provider import Provider
from tests.cli.chat.environment import Place
from tests.cli.chat.terminal import CTRL_C, CTRL_J, DOWN, ESCAPE, TAB, UP, Terminal


def _counts(number: int, **more: object) -> dict[str, object]:
    """A reply that counts: word-1, word-2, …; the first piece of it is empty."""
    return {"say": " ".join(f"word-{n}" for n in range(1, number + 1)), **more}


_GOES_SILENT = _counts(100, hang=21, when="count")  # behind word-20
_HELD = _counts(30, hold=[4], when="count to thirty")  # behind word-3


def _texts(place: Place, role: str, ref: str = "@latest") -> list[str]:
    return [message.text for message in place.messages(ref) if message.role == role]


def test_a_conversation_its_markdown_and_what_it_leaves_behind(place: Place) -> None:
    """Start, talk, leave by Ctrl-D, come back: which session, how old, and what was said last."""
    with place.chat() as chat:
        chat.wait_for("holdfast with mock-1", "HOLDFAST_MODEL", "a new conversation")
        chat.wait_ready()
        chat.enter("hello")
        chat.wait_for("You said: hello")
        chat.wait_ready()
        chat.enter("markdown")
        seen = chat.wait_for("• one", "• two", 'return "Oslo"', "Bergen", "That is all.")
        assert "**Oslo**" not in seen
        assert "```" not in seen
        assert seen.count("Where it is") == 1
        assert chat.leave() == 0
        assert chat.text().count("That is all.") == 1
        [command] = [line for line in chat.text().splitlines() if "--resume" in line]
    ref = command.split()[-1]
    assert _texts(place, "user", ref) == ["hello", "markdown"]
    with place.chat("--resume", ref) as chat:
        chat.wait_for("continuing 'A title by the model'", "2 turns; /new for a fresh one")
        chat.wait_for(f"{MARK}markdown", "Your parcel is in")
        assert chat.leave() == 0


def test_a_reply_that_is_stopped_input_that_is_queued_undo_fork_and_the_list(
    place: Place, provider: Provider
) -> None:
    """All in one sitting: each thing is kept, shown, and moved as one asks for it."""
    with place.chat() as chat:
        chat.wait_ready()
        provider.say_next(_GOES_SILENT)
        chat.enter("count")
        chat.wait_for("word-20", "Ctrl-C stops")
        chat.type(CTRL_C)
        chat.wait_for("stopped; what came so far is kept")
        chat.wait_ready()
        [stopped] = place.turns()
        assert stopped.state == "cancelled"
        assert place.messages()[-1].status == "partial"
        _queue(chat, provider)
        assert [turn.state for turn in place.turns()] == ["cancelled", "sealed", "sealed"]
        assert _texts(place, "user")[1:] == ["count to thirty", "and then?"]
        chat.enter("/undo")
        chat.wait_for("took back 2 messages")
        assert len(place.messages()) == 4
        chat.enter("/redo")
        chat.wait_for("it ends with message 6")
        chat.enter("/fork")
        chat.wait_for("forked; the other session stays as it is")
        chat.enter("say only in the fork")
        chat.wait_for("\n  only in the fork")
        chat.wait_ready()
        chat.enter("/title the fork")
        chat.wait_for("title: the fork")
        _choose_the_other(chat)
        chat.enter("back in the first")
        chat.wait_for("You said: back in the first")
        assert chat.leave() == 0
    assert "only in the fork" not in " ".join(m.text for m in place.messages())
    assert _texts(place, "user")[-1] == "back in the first"


def _queue(chat: Terminal, provider: Provider) -> None:
    """Say something while the agent answers: it is shown as queued, and answered next."""
    provider.say_next(_HELD)
    chat.enter("count to thirty")
    chat.wait_for("word-3")
    chat.enter("and then?")
    chat.wait_for("queued: and then?")
    chat.enter("/status")
    chat.wait_for("running   answering", "queued    and then?")
    chat.enter("/undo")
    chat.wait_for("/undo is not available while a turn runs")
    provider.go_on()
    chat.wait_for("word-30", "You said: and then?")
    chat.wait_ready()
    assert "queued: and then?" not in chat.bottom(4)


def _choose_the_other(chat: Terminal) -> None:
    """Choose the first session in the list: type to filter, look at the preview, go down."""
    chat.enter("/sessions")
    chat.wait_for("sessions  2 sessions", "Esc back")
    chat.type("the fork")
    chat.wait_until(lambda: "1 session in" in chat.text(), "filtered")
    assert "only in the fork" in chat.text()
    chat.type("\x15")  # clears the filter
    chat.wait_until(lambda: "2 sessions in" in chat.text(), "not filtered")
    chat.type(f"{DOWN}\r")
    chat.wait_for("continuing 'A title by the model'")


_HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp \x1b[31mred"


def test_tools_ask_first_and_nothing_hostile_reaches_the_terminal(
    place: Place, provider: Provider
) -> None:
    """Yes once, always for calls that start like it, and no with a reason for the model."""
    with place.chat() as chat:
        chat.wait_ready()
        chat.enter('call run_command {"command": "echo one"}')
        chat.wait_for("$ echo one", "allow it? y yes", "`echo one …`")
        chat.type("y\r")
        chat.wait_for("✓ run_command", "The tool said: one")
        chat.wait_ready()
        chat.enter('call run_command {"command": "echo two"}')
        chat.wait_for("$ echo two")
        chat.type("n too early\r")
        chat.wait_for("✗ run_command", "too early", "The tool said:")
        chat.wait_ready()
        chat.enter('call run_command {"command": "echo two"}')
        chat.wait_until(lambda: chat.text().count("$ echo two") == 2, "asked again")
        chat.type("a\r")
        chat.wait_for("The tool said: two")
        chat.wait_ready()
        chat.enter('call run_command {"command": "echo two three"}')
        chat.wait_for("The tool said: two three")
        assert "$ echo two three" not in chat.text()
        chat.wait_ready()
        _hear_hostile(chat, provider)
        chat.enter('call run_command {"command": "sleep 60"}')
        chat.wait_for("$ sleep 60", "allow it?")
        chat.type(CTRL_C)
        chat.wait_until(lambda: "stopped; what" in chat.bottom(4), "stopped")
        assert chat.leave() == 0
    assert place.turns()[-1].state == "cancelled"
    assert b"\x1b]0;" not in chat.raw
    assert "\u202e".encode() not in chat.raw
    assert "\x9b".encode() not in chat.raw
    assert b"\x07" not in chat.raw
    assert b"\x1b[31mred" not in chat.raw


def _hear_hostile(chat: Terminal, provider: Provider) -> None:
    """Let the model say, call and be answered what would take the terminal over."""
    provider.say_next({"say": f"{_HOSTILE} said", "delay": 0.02})
    chat.enter("hello")
    chat.wait_for(r"\x1b]0;owned\x07", "said")
    chat.wait_ready()
    call = {"name": "run_command", "arguments": {"command": f"echo '{_HOSTILE}' done"}}
    provider.say_next({"calls": [call]})
    chat.enter("again")
    chat.wait_until(lambda: "allow it?" in chat.bottom(4), "asked")
    chat.type("y\r")
    chat.wait_until(lambda: "The tool said: \\x1b[2J" in chat.text(), "answered")
    chat.enter("/sessions")
    chat.wait_for("Esc back")
    chat.type(ESCAPE)
    chat.wait_ready()


def test_after_a_crash_it_says_what_was_interrupted_first(place: Place, provider: Provider) -> None:
    """Killed in mid-reply: what was shown is there, and one can go on."""
    with place.chat(anew=True) as chat:
        chat.wait_ready()
        provider.say_next(_GOES_SILENT)
        chat.enter("count")
        chat.wait_for("word-20")
        chat.wait_until(lambda: _is_flushed(place, "word-20"), "stored, while nothing more comes")
        chat.kill()
    with place.chat() as chat:
        chat.wait_for("continuing", "The last turn was interrupted", f"{MARK}count")
        chat.wait_for("characters of the reply", "c continue · r retry · d drop")
        partial = place.messages()[1]
        assert (partial.status, partial.text[:13]) == ("partial", "word-1 word-2")
        assert "word-20" in partial.text
        chat.type("c\r")
        chat.wait_for("You said: Go on where you were interrupted.")
        assert chat.leave() == 0
    assert [turn.state for turn in place.turns()] == ["interrupted", "sealed"]
    assert place.messages()[1] == partial


def _is_flushed(place: Place, word: str) -> bool:
    """Return whether a draft in the store has this word in it."""
    database = sqlite3.connect(f"file:{place.shell.store}?mode=ro", uri=True)
    with contextlib.closing(database):
        found = database.execute("SELECT * FROM drafts").fetchall()
    return word in repr(found)


def test_sigterm_in_mid_reply_keeps_all_and_ends(place: Place, provider: Provider) -> None:
    """The turn is sealed as cancelled, and the exit code tells which signal it was."""
    with place.chat(anew=True) as chat:
        chat.wait_ready()
        provider.say_next(_GOES_SILENT)
        chat.enter("count")
        chat.wait_for("word-20")
        chat.process.kill(signal.SIGTERM)
        assert chat.ended() == 143
        assert "holdfast chat --resume" in chat.text()
    [turn] = place.turns()
    assert turn.state == "cancelled"
    assert "SIGTERM" in (turn.error or "")
    assert "word-20" in place.messages()[-1].text


def test_a_terminal_that_is_closed_ends_the_turn(place: Place, provider: Provider) -> None:
    """There is no terminal to print to, and everything is kept."""
    with place.chat(anew=True) as chat:
        chat.wait_ready()
        provider.say_next(_GOES_SILENT)
        chat.enter("count")
        chat.wait_for("word-20")
        chat.hang_up()
        assert chat.ended() == 129
    [turn] = place.turns()
    assert turn.state == "cancelled"
    assert "the terminal hung up" in (turn.error or "")
    assert "word-20" in place.messages()[-1].text


def test_the_window_may_be_resized_in_mid_reply(place: Place, provider: Provider) -> None:
    """What is final is whole, however narrow it was meanwhile."""
    with place.chat() as chat:
        chat.wait_ready()
        provider.say_next(_counts(60, hold=[11, 26, 41], when="count"))
        chat.enter("count")
        chat.wait_for("word-10")
        for word, size in (("word-25", (50, 20)), ("word-40", (24, 8)), ("word-60", (120, 40))):
            chat.resize(*size)
            provider.go_on()
            chat.wait_for(word)
        chat.wait_ready()
        assert chat.text().count("word-60") == 1
        chat.enter("/history 1")
        chat.wait_for("#2 assistant")
        assert chat.leave() == 0
    assert [turn.state for turn in place.turns()] == ["sealed"]


def test_lines_pastes_keys_and_completion(place: Place) -> None:
    """Ctrl-J and Alt-Enter begin a line, a paste keeps its own; Ctrl-C clears, then says how."""
    with place.chat() as chat:
        chat.wait_ready()
        chat.enter("/status")
        chat.wait_for("session   none yet")
        with holdfast.open(place.shell.store, readonly=True) as store:
            assert not store.sessions().items  # looking around leaves nothing behind
        chat.type("never sent")
        chat.wait_for(f"{MARK}never sent")
        chat.type(CTRL_C)
        chat.wait_ready()
        chat.type(CTRL_C)
        chat.wait_for("Ctrl-D or /exit quits")
        chat.type(f"say one{CTRL_J}two")
        chat.type(f"{ESCAPE}\rthree")
        chat.wait_for(f"{MARK}say one\n  two\n  three")
        chat.paste(" pasted\nfour")
        chat.wait_for("  three pasted\n  four")
        chat.type("\r")
        chat.wait_for("\n\n  one\n")
        chat.wait_ready()
        chat.type("/hist")
        chat.wait_for("/history [N]", "Show the last messages")
        chat.type(f"{TAB} 1\r")
        chat.wait_for("#2 assistant")
        chat.enter("/titel x")
        chat.wait_for("there is no /titel; did you mean /title? /help lists all")
        assert chat.leave() == 0
    assert _texts(place, "user") == ["say one\ntwo\nthree pasted\nfour"]
    assert not list((place.cwd.parent / "state").rglob("*"))  # no file has what was typed
    with place.chat("--new") as chat:
        chat.wait_ready()

        def recalled() -> bool:
            chat.type(UP)  # It is read in the background; until then the key does nothing.
            return "three pasted" in chat.text()

        chat.wait_until(recalled, "what was said before")
        chat.type(f"{CTRL_C}/resume say")
        chat.wait_until(lambda: " ago " in chat.bottom(4) or "just now" in chat.bottom(4), "menu")
        chat.type(f"{TAB}\r")
        chat.wait_for("continuing 'A title by the model'")
        assert chat.leave() == 0


def test_without_a_model_it_opens_reads_and_switches(place: Place, provider: Provider) -> None:
    """What is said meanwhile is kept, and answered when there is a model."""
    with holdfast.open(place.shell.store) as store:
        session = store.create(cwd=str(place.cwd))
        session.append(Message.user("hello"), Message.assistant("You said: hello"))
    place.shell.environment |= {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    with place.chat() as chat:
        chat.wait_for("cannot be used here: set OPENAI_API_KEY", "/model chooses a model")
        chat.wait_for("continuing", "You said: hello")
        chat.wait_ready()
        chat.enter("are you there?")
        chat.wait_for("your message is kept")
        chat.enter("/search hello")
        chat.wait_for("goes to the first")
        chat.enter("/model nobody")
        chat.wait_for("model 'nobody': unknown provider")
        assert chat.leave() == 0
    place.shell.environment["OPENAI_BASE_URL"] = provider.url
    with place.chat() as chat:
        chat.wait_for("queued for your next message: are you there?")
        chat.wait_ready()
        chat.type("\r")
        chat.wait_for("You said: are you there?")
        assert chat.leave() == 0


def test_a_terminal_that_cannot_be_drawn_on_is_spoken_to_in_lines(
    place: Place, provider: Provider
) -> None:
    """Somebody sits there: they are asked, and Ctrl-C stops a reply, not the chat."""
    with place.chat(kind="dumb") as chat:
        chat.wait_for(f"commands\n{MARK.rstrip()}")
        chat.type('call run_command {"command": "echo one"}\r')
        chat.wait_for("allow it? y yes")
        chat.type("y\r")
        chat.wait_for("The tool said: one")
        provider.say_next(_GOES_SILENT)
        chat.type("count\r")
        chat.wait_for("word-20")
        chat.type(CTRL_C)
        chat.wait_for("stopped; what came so far is kept")
        chat.type("/sessions\r")
        chat.wait_for("TITLE")
        chat.type("\x04")
        assert chat.ended() == 0
        assert "--resume" in chat.text()
    assert [turn.state for turn in place.turns()] == ["sealed", "cancelled"]
    assert b"\x1b" not in chat.raw
