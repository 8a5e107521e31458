"""Histories from real use, and what a window of each must contain, whatever the provider.

Each is a history that broke an agent: "tool_use without tool_result", "messages with role tool must
be a response", "text content blocks must be non-empty", "the number of function response parts". A
case states in plain fields what the window must contain, never how a provider writes it; whether it
is valid is checked by `holdfast.testing.legality`.

Every text in `has` is in the window exactly once, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypedDict

import msgspec

from holdfast.formats import anthropic, openai, openai_responses
from holdfast.session import Session
from holdfast.values import JSON, File, Message, Part, Raw, Text, Thinking, ToolCall, ToolResult

# ------------------------------------------------------------------------------ what a case says


class Ask(TypedDict, total=False):
    """What the window is asked for, beyond the provider."""

    max_tokens: int
    max_messages: int
    keep_first_user: bool
    system: str
    timestamps: bool


# What may happen to a session after its history was stored; each gives the session to look at.


@dataclass(frozen=True)
class Append:
    messages: tuple[Message, ...]

    def run(self, session: Session) -> Session:
        session.append(*self.messages)
        return session


@dataclass(frozen=True)
class Summarize:
    text: str
    upto: int | None = None

    def run(self, session: Session) -> Session:
        session.summarize(self.text, upto=self.upto)
        return session


@dataclass(frozen=True)
class Rewind:
    to: int

    def run(self, session: Session) -> Session:
        session.rewind(self.to)
        return session


@dataclass(frozen=True)
class Undo:
    n: int = 1

    def run(self, session: Session) -> Session:
        session.undo(self.n)
        return session


@dataclass(frozen=True)
class Redo:
    def run(self, session: Session) -> Session:
        session.redo()
        return session


@dataclass(frozen=True)
class Clear:
    def run(self, session: Session) -> Session:
        session.clear()
        return session


@dataclass(frozen=True)
class Fork:
    at: int | None = None

    def run(self, session: Session) -> Session:
        return session.fork(self.at)


Step: TypeAlias = Append | Summarize | Rewind | Undo | Redo | Clear | Fork


@dataclass(frozen=True)
class Case:
    """A history, what is done with it, what is asked, and what the window must be like.

    `either` names groups of texts of which at least one is there; `fills` counts the results that
    had to be made up (see `MADE_UP`); `notes` are words that `window.notes` has to use; `has_on`
    and `lacks_on` are for what only some providers get; `longest` is in characters.
    """

    name: str
    history: tuple[Message, ...]
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    either: tuple[tuple[str, ...], ...] = ()
    fills: int = 0
    notes: tuple[str, ...] = ()
    left_out: bool | None = None
    steps: tuple[Step, ...] = ()
    ask: Ask = field(default_factory=Ask)
    has_on: tuple[tuple[str, str], ...] = ()
    lacks_on: tuple[tuple[str, str], ...] = ()
    longest: int | None = None
    may_be_empty: bool = False


# ------------------------------------------------------------------------------- how they are made


def _user(*content: str | Part, **metadata: JSON) -> Message:
    return Message.user(content, metadata=metadata)


def _says(*content: str | Part, **metadata: JSON) -> Message:
    return Message.assistant(content, metadata=metadata)


def _call(call_id: str, name: str = "look", arguments: JSON = None) -> ToolCall:
    return ToolCall(call_id, name, {"at": call_id} if arguments is None else arguments)


def _calls(*parts: str | Part) -> Message:
    return Message.assistant(parts)


def _done(
    call_id: str, content: str | tuple[Text | File | Raw, ...], *, error: bool = False
) -> Message:
    return Message(role="tool", parts=(ToolResult(call_id, content, error=error),))


def _turns(count: int) -> tuple[Message, ...]:
    """Make short turns: `question 1.`, `answer 1.`, and so on."""
    return tuple(
        message
        for n in range(1, count + 1)
        for message in (_user(f"question {n}."), _says(f"answer {n}."))
    )


_PNG: Final = File(
    name="cat.png",
    mime="image/png",
    data=bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    ),
)
_PDF: Final = File(name="bill.pdf", mime="application/pdf", data=b"%PDF-1.4\n%%EOF\n")
_ZIP: Final = File(name="logs.zip", mime="application/zip", data=b"PK\x05\x06" + bytes(18))
_PICTURE: Final = ("iVBORw0KGgo", "[image: cat.png]")  # its data, or its breadcrumb
MADE_UP: Final = ("[interrupted: the outcome", "[not run", "[no result")  # how such results begin
_BIG: Final = "BEGIN " + "0123456789abcdef " * 12_000 + "END"  # about 200 KB
_REASONING: Final[dict[str, JSON]] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "gAAAA",
}
_LONG_ID: Final = "call_" + "0123456789" * 6

# ------------------------------------------------------------- calls whose results are missing


_MISSING: Final = (
    Case(
        "a plain conversation",
        _turns(3),
        has=("question 1.", "answer 1.", "question 3.", "answer 3."),
    ),
    Case(
        "interrupted after a call",
        (_user("find it"), _calls("I look.", _call("c1")), _user("are you there?")),
        has=("find it", "I look.", "are you there?"),
        fills=1,
    ),
    Case(
        "interrupted after a call, and nothing since",
        (_user("find it"), _calls(_call("c1"))),
        has=("find it",),
        fills=1,
    ),
    Case(
        "interrupted between parallel results",
        (_user("find both"), _calls(_call("c1"), _call("c2")), _done("c1", "first"), _user("and?")),
        has=("find both", "first", "and?"),
        fills=1,
    ),
    Case(
        "interrupted before any of three parallel results",
        (_user("find all"), _calls(_call("c1"), _call("c2"), _call("c3")), _user("stop")),
        has=("find all", "stop"),
        fills=3,
    ),
    Case(
        "interrupted in the second of two exchanges",
        (
            _user("go"),
            _calls(_call("c1")),
            _done("c1", "first"),
            _calls("Now the other.", _call("c2")),
            _user("well?"),
        ),
        has=("go", "first", "Now the other.", "well?"),
        fills=1,
    ),
    Case(
        "interrupted twice",
        (_user("go"), _calls(_call("c1")), _user("go on"), _calls(_call("c2")), _user("well?")),
        has=("go on", "well?"),
        fills=2,
    ),
    Case(
        "a reply went on without the result",
        (_user("go"), _calls(_call("c1")), _says("It takes too long."), _user("fine")),
        has=("go", "It takes too long.", "fine"),
        fills=1,
    ),
)

# ---------------------------------------------------------- results without calls, and twice


_ORPHANS: Final = (
    Case(
        "an orphan in the middle",
        (_user("one"), _says("two"), _done("gone", "orphan"), _user("three"), _says("four")),
        has=("one", "two", "three", "four"),
        lacks=("orphan",),
        left_out=True,
    ),
    Case(
        "an orphan at the start",
        (_done("gone", "orphan"), _user("one"), _says("two"), _user("three")),
        has=("one", "two", "three"),
        lacks=("orphan",),
        left_out=True,
    ),
    Case(
        "an orphan at the end",
        (_user("one"), _says("two"), _user("three"), _done("gone", "orphan")),
        has=("one", "two", "three"),
        lacks=("orphan",),
        left_out=True,
    ),
    Case(
        "an orphan among the results of an exchange",
        (
            _user("one"),
            _calls(_call("c1")),
            _done("gone", "orphan"),
            _done("c1", "mine"),
            _user("two"),
        ),
        has=("one", "mine", "two"),
        lacks=("orphan",),
        left_out=True,
    ),
    Case(
        "nothing but orphans before the first question",
        (_done("a", "orphan a"), _done("b", "orphan b"), _user("one")),
        has=("one",),
        lacks=("orphan",),
        left_out=True,
    ),
    Case(
        "a result before its call",
        (_user("one"), _done("c1", "early"), _calls(_call("c1")), _user("two")),
        has=("one", "two"),
        either=(("early", *MADE_UP),),
    ),
    Case(
        "a result twice",
        (
            _user("one"),
            _calls(_call("c1")),
            _done("c1", "mine"),
            _done("c1", "again"),
            _user("two"),
        ),
        has=("one", "mine", "two"),
        lacks=("again",),
        left_out=True,
    ),
    Case(
        "a result a second time, a turn later",
        (
            _user("one"),
            _calls(_call("c1")),
            _done("c1", "mine"),
            _says("two"),
            _user("three"),
            _done("c1", "again"),
            _says("four"),
        ),
        has=("one", "mine", "two", "three", "four"),
        lacks=("again",),
        left_out=True,
    ),
    Case(
        "a result that came after the next reply",
        (_user("one"), _calls(_call("c1")), _user("two"), _says("three"), _done("c1", "late")),
        has=("one", "two", "three"),
        either=(("late", *MADE_UP),),
    ),
    Case(
        "a window that would start with a tool result",
        (_user("one"), _calls(_call("c1")), _done("c1", "mine"), _says("two"), _user("three")),
        has=("three",),
        lacks=("mine",),
        left_out=True,
        ask={"max_messages": 3},
    ),
)

# --------------------------------------------------------------------- ids, names, arguments


_IDS: Final = (
    Case(
        "duplicate call ids across turns",
        (
            _user("one"),
            _calls(_call("call_0")),
            _done("call_0", "first"),
            _says("two"),
            _user("three"),
            _calls(_call("call_0")),
            _done("call_0", "second"),
            _says("four"),
        ),
        has=("one", "first", "two", "three", "second", "four"),
    ),
    Case(
        "duplicate call ids, the first never answered",
        (
            _user("one"),
            _calls(_call("call_0")),
            _user("two"),
            _calls(_call("call_0")),
            _done("call_0", "second"),
            _says("three"),
        ),
        has=("one", "two", "second", "three"),
        fills=1,
    ),
    Case(
        "duplicate call ids in one message",
        (_user("one"), _calls(_call("c1"), _call("c1")), _done("c1", "mine"), _user("two")),
        has=("one", "mine", "two"),
    ),
    Case(
        "ids that no provider takes",
        (
            _user("one"),
            _calls(_call("functions.bash:0"), _call("ümlaut 1")),
            _done("functions.bash:0", "first"),
            _done("ümlaut 1", "second"),
            _user("two"),
        ),
        has=("one", "first", "second", "two"),
    ),
    Case(
        "ids too long, alike for as far as they fit",
        (
            _user("one"),
            _calls(_call(_LONG_ID + "a"), _call(_LONG_ID + "b")),
            _done(_LONG_ID + "a", "first"),
            _done(_LONG_ID + "b", "second"),
            _user("two"),
        ),
        has=("one", "first", "second", "two"),
    ),
    Case(
        "ids alike once they are made legal",
        (
            _user("one"),
            _calls(_call("a.1"), _call("a:1"), _call("a_1")),
            _done("a.1", "first"),
            _done("a:1", "second"),
            _done("a_1", "third"),
            _user("two"),
        ),
        has=("one", "first", "second", "third", "two"),
    ),
    Case(
        "a nameless call",
        (_user("one"), _calls("I look.", _call("c1", "")), _done("c1", "of nobody"), _user("two")),
        has=("one", "I look.", "two"),
        lacks=("of nobody",),
        left_out=True,
    ),
    Case(
        "a nameless call and nothing else",
        (_user("one"), _calls(_call("c1", "")), _done("c1", "of nobody"), _user("two")),
        has=("one", "two"),
        lacks=("of nobody",),
        left_out=True,
    ),
    Case(
        "a nameless call beside a good one",
        (
            _user("one"),
            _calls(_call("c1", ""), _call("c2")),
            _done("c1", "of nobody"),
            _done("c2", "mine"),
            _user("two"),
        ),
        has=("one", "mine", "two"),
        lacks=("of nobody",),
        left_out=True,
    ),
    Case(
        "a call without an id",
        (_user("one"), _calls(_call("")), _done("", "mine"), _user("two")),
        has=("one", "two"),
    ),
    Case(
        "names of tools that not all providers take",
        (
            _user("one"),
            _calls(
                _call("c1", "fs.read/all"), _call("c2", "mcp__" + "n" * 150), _call("c3", "7zip")
            ),
            _done("c1", "first"),
            _done("c2", "second"),
            _done("c3", "third"),
            _user("two"),
        ),
        has=("one", "first", "second", "third", "two"),
    ),
    Case(
        "arguments that are no object",
        (
            _user("one"),
            _calls(
                _call("c1", arguments='{"path": "a'),
                _call("c2", arguments=[1]),
                ToolCall("c3", "look"),
            ),
            _done("c1", "first"),
            _done("c2", "second"),
            _done("c3", "third"),
            _user("two"),
        ),
        has=("one", "first", "second", "third", "two"),
    ),
    Case(
        "a user's name with a space in it",
        (Message.user("one", name="Ann Lee"), _says("two"), Message.user("three", name="Łukasz")),
        has=("one", "two", "three"),
    ),
)

# ------------------------------------------------------------------------- order, and who speaks


_ORDER: Final = (
    Case(
        "a message appended while a tool ran",
        (_user("one"), _calls(_call("c1")), _user("hurry"), _done("c1", "mine"), _says("two")),
        has=("one", "mine", "hurry", "two"),
    ),
    Case(
        "two messages appended between parallel results",
        (
            _user("one"),
            _calls(_call("c1"), _call("c2")),
            _user("hurry"),
            _done("c1", "first"),
            _user("please"),
            _done("c2", "second"),
            _says("two"),
        ),
        has=("one", "first", "second", "hurry", "please", "two"),
    ),
    Case(
        "parallel results in another order than the calls",
        (
            _user("one"),
            _calls(_call("c1"), _call("c2")),
            _done("c2", "second"),
            _done("c1", "first"),
            _user("two"),
        ),
        has=("one", "two"),
        either=(("first",), ("second",)),
    ),
    Case(
        "parallel calls stored as messages of their own",
        (
            _user("one"),
            _calls(_call("c1")),
            _calls(_call("c2")),
            _done("c1", "first"),
            _done("c2", "second"),
            _says("two"),
        ),
        has=("one", "first", "second", "two"),
    ),
    Case(
        "a proactive delivery before a reply",
        (_says("Your parcel is here."), _user("which parcel?")),
        has=("which parcel?",),
        has_on=(
            ("openai", "Your parcel is here."),
            ("openai-responses", "Your parcel is here."),
        ),
    ),
    Case(
        "a proactive delivery in the middle",
        (_user("one"), _says("two"), _says("Your parcel is here."), _user("which parcel?")),
        has=("one", "two", "Your parcel is here.", "which parcel?"),
    ),
    Case(
        "nothing but proactive deliveries",
        (_says("Your parcel is here."), _says("It is still here.")),
        has_on=(("openai", "It is still here."), ("openai-responses", "It is still here.")),
        may_be_empty=True,
    ),
    Case(
        "three user messages in a row",
        (_user("one"), _user("two"), _user("three"), _says("four"), _user("five")),
        has=("one", "two", "three", "four", "five"),
    ),
    Case(
        "two replies in a row, the second with a call",
        (
            _user("one"),
            _says("two"),
            _calls("three", _call("c1")),
            _done("c1", "mine"),
            _user("four"),
        ),
        has=("one", "two", "three", "mine", "four"),
    ),
    Case(
        "a finished conversation that ends in white space",
        (_user("one"), _says("two \n\n")),
        has=("one", "two"),
    ),
    Case(
        "instructions in the middle of a history",
        (_user("one"), _says("two"), Message.system("be brief"), _user("three")),
        has=("one", "two", "three"),
        either=(("be brief",),),
    ),
    Case(
        "a file among the instructions",
        (Message.system(("see this:", _PNG)), _user("one"), Message.system((_PNG,)), _user("two")),
        has=("see this:", "one", "two"),
        either=(_PICTURE,),
    ),
    Case(
        "thinking that is not the assistant's",
        (_user(Thinking("let me think", "c2lnbmVk"), "one"), _says("two"), _user("three")),
        has=("one", "two", "three"),
        lacks=("c2lnbmVk",),
    ),
    Case(
        "a result that names another tool",
        (
            _user("one"),
            _calls(_call("c1")),
            Message(role="tool", parts=(ToolResult("c1", "mine", name="listen"),)),
            _user("two"),
        ),
        has=("one", "mine", "two"),
        lacks=("listen",),
    ),
    Case(
        "a file type in capitals",
        (_user("one", File(name="a", mime="IMAGE/PNG", data=_PNG.data)), _says("two")),
        has=("one", "two"),
        lacks=("IMAGE/PNG",),
    ),
    Case(
        "a reply at the end with blanks before a note",
        (_user("one"), anthropic.decode({"role": "assistant", "content": "sure  "})),
        has=("one", "sure"),
    ),
    Case(
        "instructions given, and instructions stored",
        (Message.system("stored words"), _user("one"), _says("two"), _user("three")),
        has=("given words", "one", "two", "three"),
        either=(("stored words",),),
        ask={"system": "given words"},
    ),
    Case("nothing stored yet", (), ask={"system": "given words"}, may_be_empty=True),
    Case(
        "a user message with results and text in one",
        (
            _user("one"),
            _calls(_call("c1")),
            Message.user(("look here:", ToolResult("c1", "mine"), "and?")),
            _says("two"),
        ),
        has=("one", "mine", "two"),
        either=(("look here:",), ("and?",)),
    ),
    Case(
        "call and result in one message",
        (_user("one"), _calls(_call("c1"), ToolResult("c1", "mine"), "That is it."), _user("two")),
        has=("one", "mine", "two"),
        either=(("That is it.",),),
    ),
)

# ------------------------------------------------------------ what is empty, hidden or cut off


_EMPTY: Final = (
    Case(
        "an empty user message",
        (_user("one"), _says("two"), _user(""), _user("three")),
        has=("one", "two", "three"),
    ),
    Case(
        "a reply of white space between two questions",
        (_user("one"), _says(" \n"), _user("two"), _says("three"), _user("four")),
        has=("one", "two", "three", "four"),
    ),
    Case(
        "a message without parts",
        (_user("one"), Message(role="assistant"), _user("two")),
        has=("one", "two"),
    ),
    Case(
        "an empty text beside a call",
        (_user("one"), _calls("", _call("c1")), _done("c1", "mine"), _user("two")),
        has=("one", "mine", "two"),
    ),
    Case(
        "a tool that answered with nothing",
        (_user("one"), _calls(_call("c1")), _done("c1", ""), _says("two"), _user("three")),
        has=("one", "two", "three"),
    ),
    Case(
        "a tool that failed without a word",
        (
            _user("one"),
            _calls(_call("c1")),
            _done("c1", "", error=True),
            _says("two"),
            _user("three"),
        ),
        has=("one", "two", "three"),
    ),
    Case(
        "a tool that failed",
        (_user("one"), _calls(_call("c1")), _done("c1", "no such file", error=True), _user("two")),
        has=("one", "no such file", "two"),
        has_on=(
            ("openai", "[error] no such file"),
            ("openai-responses", "[error] no such file"),
        ),
        lacks_on=(("anthropic", "[error]"), ("gemini", "[error]")),
    ),
    Case(
        "tools that failed and say so themselves",
        (
            _user("one"),
            _calls(_call("c1"), _call("c2")),
            _done("c1", "Error: no such file", error=True),
            _done("c2", "[failed] no such host", error=True),
            _user("two"),
        ),
        has=("one", "Error: no such file", "[failed] no such host", "two"),
        lacks=("[error]",),
    ),
    Case(
        "a tool that speaks of errors and did not fail",
        (_user("one"), _calls(_call("c1")), _done("c1", "no errors found"), _user("two")),
        has=("one", "no errors found", "two"),
        lacks=("[error]",),
    ),
    Case(
        "a tool that failed and took a picture",
        (
            _user("one"),
            _calls(_call("c1"), _call("c2")),
            _done("c1", (Text("a blank page"), _PNG), error=True),
            _done("c2", (_PNG,), error=True),
            _user("two"),
        ),
        has=("one", "a blank page", "two"),
        either=(_PICTURE,),
    ),
    Case(
        "a hidden message and a command",
        (_user("one"), _user("secret", hidden=True), _user("/model x", command=True), _says("two")),
        has=("one", "two"),
        lacks=("secret", "/model x"),
        left_out=True,
    ),
    Case(
        "a hidden call whose result is not hidden",
        (
            _user("one"),
            Message.assistant((_call("c1"),), metadata={"hidden": True}),
            _done("c1", "mine"),
            _user("two"),
        ),
        has=("one", "two"),
        lacks=("mine",),
        left_out=True,
    ),
    Case(
        "a reply cut off",
        (_user("one"), Message.assistant("two and a ha", status="partial"), _user("go on")),
        has=("one", "two and a ha", "go on"),
        either=(("cut off", "interrupted", "incomplete", "partial"),),
    ),
    Case(
        "a reply cut off behind its call",
        (
            _user("one"),
            Message.assistant(("let me see", _call("c1")), status="partial"),
            _user("go on"),
        ),
        has=("one", "let me see", "go on"),
        fills=1,
    ),
    Case(
        "a breadcrumb that the model repeated",
        (
            _user("one"),
            _says("[image: cat.png]"),
            _user("two"),
            _says("[image: cat.png] A cat."),
            _user("three"),
        ),
        has=("one", "two", "A cat.", "three"),
        lacks=("[image: cat.png]",),
    ),
    Case(
        "time marks asked for",
        _turns(2),
        has=("question 1.", "answer 1.", "question 2.", "answer 2."),
        ask={"timestamps": True},
    ),
    Case(
        "text that is no Unicode",
        (_user("one"), _says("two \udc80 \x00"), _user("three")),
        has=("one", "three"),
    ),
)

# ------------------------------------------------------------------- files, thinking, other shapes


_PARTS: Final = (
    Case(
        "an image-only user message",
        (_user("one"), _says("two"), _user(_PNG)),
        has=("one", "two"),
        either=(_PICTURE,),
    ),
    Case(
        "an image-only first message",
        (_user(_PNG), _says("A cat."), _user("right")),
        has=("A cat.", "right"),
        either=(_PICTURE,),
    ),
    Case(
        "an image from the assistant",
        (_user("draw a cat"), _says(_PNG), _user("thanks")),
        has=("draw a cat", "thanks"),
        either=(_PICTURE,),
    ),
    Case(
        "a document and an archive",
        (_user("read these", _PDF, _ZIP), _says("two")),
        has=("read these", "two"),
        either=(("JVBERi0", "bill.pdf"), ("logs.zip",)),
    ),
    Case(
        "a tool that answered with an image",
        (
            _user("one"),
            _calls(_call("c1"), _call("c2")),
            _done("c1", (Text("a screen"), _PNG)),
            _done("c2", (_PNG,)),
            _says("two"),
        ),
        has=("one", "a screen", "two"),
        either=(_PICTURE,),
    ),
    Case(
        "assistant with only reasoning",
        (
            _user("one"),
            _says(Thinking("let me think")),
            _user("two"),
            _says("three"),
            _user("four"),
        ),
        has=("one", "two", "three", "four"),
    ),
    Case(
        "assistant with only signed reasoning",
        (_user("one"), _says(Thinking("let me think", "c2lnbmVk")), _user("two")),
        has=("one", "two"),
    ),
    Case(
        "signed thinking before a call",
        (
            _user("one"),
            _calls(Thinking("let me think", "c2lnbmVk"), _call("c1")),
            _done("c1", "mine"),
        ),
        has=("one", "mine"),
        has_on=(("anthropic", "c2lnbmVk"),),
        lacks_on=tuple((other, "c2lnbmVk") for other in ("openai", "openai-responses", "gemini")),
    ),
    Case(
        "unsigned thinking before text",
        (_user("one"), _says(Thinking("let me think"), "two"), _user("three")),
        has=("one", "two", "three"),
    ),
    Case(
        "thinking behind the text",
        (_user("one"), _says("two", Thinking("let me think", "c2lnbmVk")), _user("three")),
        has=("one", "two", "three"),
    ),
    Case(
        "thinking between the blocks of a reply",  # sent back as it came, or refused as modified
        (
            _user("one"),
            _calls(Thinking("hm", "c2lnMQ"), "I look.", Thinking("so", "c2lnMg"), _call("c1")),
            _done("c1", "mine"),
        ),
        has=("one", "I look.", "mine"),
        has_on=(("anthropic", "c2lnMQ"), ("anthropic", "c2lnMg")),
    ),
    Case(
        "thinking that begins with what cannot be sent",
        (
            _user("one"),
            _says(Thinking("hm"), "two", Thinking("so", "c2lnMg"), "three"),
            _user("four"),
        ),
        has=("one", "two", "three", "four"),
        lacks_on=(("anthropic", "c2lnMg"),),
    ),
    Case(
        "a reasoning item whose reply never came",
        (_user("one"), openai_responses.decode(_REASONING), _user("two"), _says("three")),
        has=("one", "two", "three"),
    ),
    Case(
        "a reasoning item before its call",
        (
            _user("one"),
            openai_responses.decode(_REASONING),
            _calls(_call("c1")),
            _done("c1", "mine"),
            _says("two"),
        ),
        has=("one", "mine", "two"),
        has_on=(("openai-responses", "rs_1"),),
        lacks_on=tuple((other, "rs_1") for other in ("openai", "anthropic", "gemini")),
    ),
    Case(
        "items that only another provider has",
        (
            _user("one"),
            _says(
                Raw(
                    "openai-responses", {"item": {"type": "reasoning", "id": "rs_1", "summary": []}}
                ),
                Raw("elsewhere", {"secret": "of elsewhere"}),
                "two",
            ),
            _user("three"),
        ),
        has=("one", "two", "three"),
        lacks=("of elsewhere",),
    ),
    Case(
        "a message of nothing but what another provider has",
        (_user("one"), _says(Raw("elsewhere", {"secret": "of elsewhere"})), _user("two")),
        has=("one", "two"),
        lacks=("of elsewhere",),
    ),
)

# -------------------------------------------------------- items that belong together, and old kinds


def _items(*items: dict[str, JSON]) -> tuple[Message, ...]:
    """Decode items of responses, a message each."""
    return tuple(map(openai_responses.decode, items))


_FIRST_CALL: Final[dict[str, JSON]] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look",
    "arguments": "{}",
}
_SECOND_CALL: Final[dict[str, JSON]] = {**_FIRST_CALL, "id": "fc_2", "call_id": "call_2"}
_CUSTOM_CALL: Final[dict[str, JSON]] = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_1",
    "name": "plan",
    "input": "TO oslo",
}
_OLD_CALL: Final = openai.decode(
    {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "look", "arguments": "{}"},
    }
)

_TOGETHER: Final = (
    Case(
        "a call with its reasoning item",
        (_user("one"), *_items(_REASONING, _FIRST_CALL), _done("call_1", "mine"), _user("two")),
        has=("one", "mine", "two"),
        has_on=(("openai-responses", "rs_1"), ("openai-responses", "fc_1")),
        lacks_on=(("openai", "fc_1"), ("anthropic", "fc_1"), ("gemini", "fc_1")),
    ),
    Case(
        "a call whose reasoning item was left out",
        (
            _user("one"),
            msgspec.structs.replace(*_items(_REASONING), metadata={"hidden": True}),
            *_items(_FIRST_CALL),
            _done("call_1", "mine"),
            _user("two"),
        ),
        has=("one", "mine", "two"),
        lacks=("rs_1", "fc_1"),
    ),
    Case(
        "a call whose reasoning item is over the budget",
        (
            _user("one"),
            *_items(_REASONING, _FIRST_CALL),
            _done("call_1", "mine"),
            *_items(_SECOND_CALL),
            _done("call_2", "other"),
        ),
        has=("one", "other"),
        lacks=("rs_1", "fc_1", "fc_2", "mine"),
        ask={"max_messages": 3},
    ),
    Case(
        "parallel calls stored one a message",
        (
            _user("one"),
            *_items(_REASONING, _FIRST_CALL, _SECOND_CALL),
            _done("call_2", "second"),
            _done("call_1", "first"),
            _user("two"),
        ),
        has=("one", "first", "second", "two"),
        has_on=(("openai-responses", "fc_1"), ("openai-responses", "fc_2")),
    ),
    Case(
        "a custom tool that nobody answered",
        (_user("one"), *_items(_CUSTOM_CALL), _user("two")),
        has=("one", "two"),
        has_on=(("openai-responses", "custom_tool_call_output"),),
        fills=1,
    ),
    Case(
        "a custom tool that was answered like any other",
        (_user("one"), *_items(_CUSTOM_CALL), _done("call_1", "mine"), _user("two")),
        has=("one", "mine", "two"),
        has_on=(("openai-responses", "custom_tool_call_output"),),
    ),
    Case(
        "function calls of the first kind",
        (
            _user("one"),
            _OLD_CALL,
            openai.decode({"role": "function", "name": "look", "content": "mine"}),
            _user("two"),
            msgspec.structs.replace(_OLD_CALL, id="again"),
            _user("three"),
        ),
        has=("one", "mine", "two", "three"),
        fills=1,
    ),
    Case(
        "a refusal",
        (
            _user("one"),
            openai.decode({"role": "assistant", "content": None, "refusal": "I will not."}),
            _user("two"),
        ),
        has=("one", "two"),
        has_on=(("openai", "I will not."),),
    ),
    Case(
        "a server's search that never came back",
        (
            _user("one"),
            anthropic.decode(
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "server_tool_use",
                            "id": "srv_1",
                            "name": "web_search",
                            "input": {},
                        }
                    ],
                }
            ),
            _user("two"),
        ),
        has=("one", "two"),
        lacks=("srv_1",),
    ),
)

# ------------------------------------------------------------------------------------ the budget


_BUDGET: Final = (
    Case(
        "a 200 KB tool result, and room for it",
        (_user("one"), _calls(_call("c1")), _done("c1", _BIG), _says("two"), _user("three")),
        has=("one", "BEGIN", "END", "two", "three"),
    ),
    Case(
        "a 200 KB tool result in the newest exchange",
        (_user("one"), _calls(_call("c1"), _call("c2")), _done("c1", _BIG), _done("c2", "small")),
        has=("one", "BEGIN", "small"),
        notes=("shortened",),
        longest=60_000,
        ask={"max_tokens": 4_000},
    ),
    Case(
        "a 200 KB tool result in an old exchange",
        (_user("one"), _calls(_call("c1")), _done("c1", _BIG), _says("two"), _user("three")),
        has=("three",),
        left_out=True,
        longest=60_000,
        ask={"max_tokens": 2_000},
    ),
    Case(
        "a question over the budget",
        (_user("one"), _says("two"), _user("three " + "and so on, " * 4_000)),
        has=("three",),
        notes=("budget",),
        ask={"max_tokens": 500},
    ),
    Case(
        "the newest turns that fit",
        _turns(300),
        has=("question 300.", "answer 300."),
        lacks=("question 1.", "answer 1."),
        left_out=True,
        ask={"max_messages": 20},
    ),
    Case(
        "the newest turns within the tokens",
        _turns(300),
        has=("question 300.", "answer 300."),
        lacks=("question 1.", "answer 1."),
        left_out=True,
        ask={"max_tokens": 400},
    ),
    Case(
        "the first question kept",
        (_user("the task"), _says("I begin."), *_turns(100), _user("and now?")),
        has=("the task", "question 100.", "answer 100.", "and now?"),
        lacks=("question 1.", "answer 1."),
        left_out=True,
        ask={"max_messages": 12, "keep_first_user": True},
    ),
    Case(
        "a budget that ends within an exchange",
        (
            *_turns(2),
            _user("go"),
            _calls(_call("c1"), _call("c2")),
            _done("c1", "first"),
            _done("c2", "second"),
            _says("all done"),
            _user("and now?"),
        ),
        has=("and now?",),
        left_out=True,
        ask={"max_messages": 4},
    ),
)

# ------------------------------------------------------- summaries, going back, and other branches


_EXCHANGE: Final = (_user("go"), _calls(_call("c1")), _done("c1", "mine"), _says("all done"))

_MOVES: Final = (
    Case(
        "a summary stands for what it covers",
        _turns(3),
        steps=(Summarize("We spoke of three things."), Append((_user("and now?"),))),
        has=("We spoke of three things.", "and now?"),
        lacks=("question 1.", "answer 3."),
    ),
    Case(
        "two summaries",
        _turns(2),
        steps=(
            Summarize("The older summary."),
            Append((_user("question 9."), _says("answer 9."))),
            Summarize("The newer summary."),
            Append((_user("and now?"),)),
        ),
        has=("The newer summary.", "and now?"),
        lacks=("The older summary.", "question 1.", "answer 9."),
    ),
    Case(
        "messages that arrived while the summary was made",
        _turns(3),
        steps=(Summarize("We spoke of two things.", upto=4), Append((_user("and now?"),))),
        has=("We spoke of two things.", "question 3.", "answer 3.", "and now?"),
        lacks=("question 2.", "answer 2."),
    ),
    Case(
        "a summary of everything, and nothing since",
        _turns(2),
        steps=(Summarize("We spoke of two things."),),
        has=("We spoke of two things.",),
        lacks=("question 1.", "answer 2."),
    ),
    Case(
        "a summary up to the middle of an exchange",
        _EXCHANGE,
        steps=(Summarize("We began.", upto=2), Append((_user("and now?"),))),
        has=("We began.", "mine", "all done", "and now?"),
    ),
    Case(
        "an orphan right behind a summary",
        _turns(2),
        steps=(Summarize("We spoke."), Append((_done("gone", "orphan"), _user("and now?")))),
        has=("We spoke.", "and now?"),
        lacks=("orphan", "question 1."),
    ),
    Case(
        "a summary that was taken back",
        _turns(3),
        steps=(Summarize("We spoke of three things."), Rewind(4), Append((_user("and now?"),))),
        has=("question 1.", "answer 2.", "and now?"),
        lacks=("We spoke of three things.", "question 3."),
    ),
    Case(
        "a summary and a small budget",
        _turns(5),
        steps=(Summarize("We spoke of five things."), Append((*_turns(50), _user("and now?")))),
        has=("answer 50.", "and now?"),
        left_out=True,
        ask={"max_messages": 8},
    ),
    Case(
        "after a rewind",
        _turns(3),
        steps=(Rewind(2), Append((_user("instead"),))),
        has=("question 1.", "answer 1.", "instead"),
        lacks=("question 2.", "answer 3."),
    ),
    Case(
        "after a rewind into an exchange",
        (*_turns(1), *_EXCHANGE),
        steps=(Rewind(4), Append((_user("instead"),))),
        has=("question 1.", "answer 1.", "go", "instead"),
        lacks=("mine", "all done"),
    ),
    Case(
        "after undo and redo",
        (*_turns(1), *_EXCHANGE),
        steps=(Undo(), Redo(), Append((_user("thanks"),))),
        has=("question 1.", "answer 1.", "go", "mine", "all done", "thanks"),
    ),
    Case(
        "after undo, and another try",
        (*_turns(1), *_EXCHANGE),
        steps=(Undo(), Append((_user("instead"),))),
        has=("question 1.", "answer 1.", "instead"),
        lacks=("go", "mine", "all done"),
    ),
    Case(
        "after clear",
        _turns(2),
        steps=(Clear(), Append((_user("anew"),))),
        has=("anew",),
        lacks=("question 1.", "answer 2."),
    ),
    Case(
        "a fork",
        _turns(3),
        steps=(Fork(4), Append((_user("elsewhere"),))),
        has=("question 1.", "answer 2.", "elsewhere"),
        lacks=("question 3.", "answer 3."),
    ),
    Case(
        "a fork in the middle of an exchange",
        (*_turns(1), *_EXCHANGE),
        steps=(Fork(4), Append((_user("elsewhere"),))),
        has=("question 1.", "answer 1.", "go", "elsewhere"),
        lacks=("mine", "all done"),
    ),
    Case(
        "a fork of a fork, with a summary in between",
        _turns(2),
        steps=(
            Fork(),
            Summarize("We spoke of two things."),
            Append((_user("question 8."), _says("answer 8."))),
            Fork(),
            Append((_user("elsewhere"),)),
        ),
        has=("We spoke of two things.", "question 8.", "answer 8.", "elsewhere"),
        lacks=("question 1.", "answer 2."),
    ),
    Case(
        "an exchange interrupted, and taken up in a fork",
        (_user("go"), _calls(_call("c1"))),
        steps=(Fork(), Append((_user("elsewhere"),))),
        has=("go", "elsewhere"),
        fills=1,
    ),
)

CASES: Final = (
    *_MISSING,
    *_ORPHANS,
    *_IDS,
    *_ORDER,
    *_EMPTY,
    *_PARTS,
    *_TOGETHER,
    *_BUDGET,
    *_MOVES,
)
