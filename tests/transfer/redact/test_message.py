"""Redacted messages: every field is scanned, and signed content is never edited."""

import json
from typing import Final, Unpack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.formats import anthropic, gemini, openai_responses
from holdfast.testing import legality
from holdfast.transfer.redact.message import (
    FoundSecret,
    RedactionFinding,
    decode_file,
    is_text_file,
    preview,
    redact_json,
    redact_message,
)
from holdfast.transfer.redact.secrets import ALL_NAMES, detectors_named
from holdfast.validation import check_message
from holdfast.values import (
    JSON,
    File,
    Message,
    MessageFields,
    Part,
    Provenance,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from tests.model import strategies as some
from tests.transfer.redact import samples

_USING: Final = detectors_named()
_KEY: Final = samples.KEYS[0][1]
_MARK: Final = "[redacted: openai key]"
_SHOWN: Final = f"{_KEY[:4]}… ({len(_KEY)} characters)"


def _redacted(message: Message) -> tuple[Message, list[tuple[str, str, str]]]:
    changed, findings = redact_message(message, _USING)
    check_message(changed)
    assert all(finding.message_id == message.id for finding in findings)
    assert redact_message(changed, _USING)[0] == changed
    return changed, [(one.where, one.detector, one.action) for one in findings]


def _bytes(message: Message) -> str:
    """Return all of a message as text, including the data of its files."""
    return json.dumps(msgspec.to_builtins(message, builtin_types=(bytes,)), default=repr)


# ------------------------------------------------------------------------------------ every field


def _with(*parts: Part, **fields: Unpack[MessageFields]) -> Message:
    return Message(role="assistant", parts=parts, **fields)


_FIELDS: Final[dict[str, Message]] = {
    "parts[0].text": _with(Text(f"use {_KEY} now")),
    "parts[1].text": _with(Text("a"), Thinking(f"use {_KEY} now")),
    "parts[0].arguments": _with(ToolCall("c", "run", f'{{"a": "{_KEY}"}}')),
    "parts[0].arguments.env[1].a b": _with(
        ToolCall("c", "run", {"env": [1, {"a b": f"use {_KEY} now"}], "n": 1.5, "t": True})
    ),
    "parts[0].name": _with(ToolCall("c", f"run {_KEY}", {})),
    "parts[0].content": _with(ToolResult("c", f"got {_KEY}\n")),
    "parts[0].content[1].text": _with(ToolResult("c", (Text("a"), Text(f"b {_KEY}")))),
    "parts[0].content[0].name": _with(
        ToolResult("c", (File(name=f"{_KEY}.txt", mime="text/plain", data=b"a"),))
    ),
    "parts[0].content[0].data.a": _with(ToolResult("c", (Raw("mcp", {"a": _KEY}),))),
    "parts[0].data": _with(File(mime="text/plain", data=f"K={_KEY}\n".encode())),
    "parts[0].data[0].deep.er": _with(Raw("elsewhere", [{"deep": {"er": _KEY}}])),
    "parts[0].source": _with(Raw(f"at {_KEY}", None)),
    "metadata.note": _with(Text("a"), metadata={"note": _KEY, "n": 1}),
    "name": _with(Text("a"), name=f"alice {_KEY}"),
    "model": _with(Text("a"), model=f"model?key={_KEY}"),
    "provenance.ref": _with(Text("a"), provenance=Provenance("mail", f"x {_KEY}")),
    "provenance.source": _with(Text("a"), provenance=Provenance(f"mail {_KEY}")),
}


@pytest.mark.parametrize("where", _FIELDS)
def test_a_secret_is_taken_out_of_every_field(where: str) -> None:
    message = msgspec.structs.replace(_FIELDS[where], seq=7)
    changed, findings = redact_message(message, _USING)
    assert _KEY in _bytes(message)
    assert _bytes(changed) == _bytes(message).replace(_KEY, _MARK)
    assert findings == [
        RedactionFinding(
            message_id=message.id,
            seq=7,
            where=where,
            detector="openai-key",
            preview=_SHOWN,
            action="replaced",
        )
    ]
    assert redact_message(changed, _USING) == (changed, [])


def test_a_message_without_secrets_comes_back_itself() -> None:
    message = _with(Text("a"), Thinking("b"), ToolCall("c", "d", {"e": [1]}), metadata={"f": "g"})
    assert redact_message(message, _USING) == (message, [])
    assert redact_message(message, _USING)[0] is message


@given(some.messages)
def test_any_message_can_be_redacted_and_stored(message: Message) -> None:
    changed, _ = redact_message(message, detectors_named(ALL_NAMES))
    check_message(changed)
    assert [type(part) for part in changed.parts] == [type(part) for part in message.parts]
    assert redact_message(changed, detectors_named(ALL_NAMES))[0] == changed


@given(some.messages, st.sampled_from(samples.KEYS), st.sampled_from(["text", "call", "metadata"]))
def test_a_secret_planted_in_any_message_is_gone(
    message: Message, key: tuple[str, str], place: str
) -> None:
    _, secret = key
    part: Part = ToolCall("c", "n", {"a": [secret]}) if place == "call" else Text(f" {secret} ")
    metadata = {**message.metadata, "planted": secret} if place == "metadata" else message.metadata
    planted = msgspec.structs.replace(message, parts=(*message.parts, part), metadata=metadata)
    changed, findings = redact_message(planted, _USING)
    assert json.dumps(secret)[1:-1] not in _bytes(changed)
    assert key[0] in {finding.detector for finding in findings}
    assert all(secret not in f"{one.where} {one.preview}" for one in findings)


# ------------------------------------------------------------------------------------------ JSON


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"password": "hunter2"}, {"password": "[redacted: password]"}),
        ({"dbPassword": "sword fish"}, {"dbPassword": "sword fish"}),
        ({"api_key": samples.drawn(32)}, {"api_key": "[redacted: secret]"}),
        (
            {"headers": {"Authorization": "Basic " + "YWxpY2U6b3BlbiBzZXNhbWU="}},
            {"headers": {"Authorization": "Basic [redacted: authorization]"}},
        ),
        (
            {"Cookie": f"a=b; sid={samples.drawn(32)}"},
            {"Cookie": "[redacted: cookie]"},
        ),
        (
            {"SecretAccessKey": samples.drawn(40, samples.BASE64)},
            {"SecretAccessKey": "[redacted: aws secret]"},
        ),
        (
            [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "HOST", "value": "hunter2"}],
            [
                {"name": "DB_PASSWORD", "value": "[redacted: password]"},
                {"name": "HOST", "value": "hunter2"},
            ],
        ),
        ({"password": None, "token": 123456789012, "secret": True}, None),
        ({"password": "${PASSWORD}", "token": "YOUR_TOKEN_1234"}, None),
        ({"primary_key": samples.drawn(32), "next_token": samples.drawn(32)}, None),
        ({"password": {"minimum": 8}}, None),
    ],
)
def test_a_value_is_judged_with_its_key(given: JSON, expected: JSON) -> None:
    changed, seen = redact_json(given, _USING)
    assert changed == (given if expected is None else expected)
    assert bool(seen) == (changed != given)
    assert redact_json(changed, _USING) == (changed, [])


def test_keys_are_redacted_and_stay_apart() -> None:
    other = samples.KEYS[5][1]
    changed, seen = redact_json({_KEY: {"a": 1}, other: _KEY}, _USING)
    assert changed == {_MARK: {"a": 1}, f"{_MARK} 2": _MARK}
    assert [one.where for one in seen] == ["keys", "keys", f"{_MARK} 2"]


def test_text_that_is_json_stays_json() -> None:
    given = json.dumps({"a": _KEY, "password": "hunter2", "pem": samples.pem(), "b": ["x"]})
    changed, _ = redact_message(_with(ToolCall("c", "run", given)), _USING)
    assert json.loads(str(changed.tool_calls[0].arguments)) == {
        "a": _MARK,
        "password": "[redacted: password]",
        "pem": "[redacted: private key]",
        "b": ["x"],
    }


def test_metadata_of_a_session_is_redacted_by_itself() -> None:
    assert redact_json({"a": [_KEY]}, _USING) == (
        {"a": [_MARK]},
        [FoundSecret("a[0]", "openai-key", _SHOWN)],
    )


# ----------------------------------------------------------------------------------------- files


def test_a_text_file_is_redacted_and_named_by_its_new_content() -> None:
    data = f"KEY={_KEY}\n".encode()
    file = File(name=".env", data=data, sha256=codec.sha256_hex(data), size=len(data))
    changed, findings = _redacted(_with(file))
    now = f"KEY={_MARK}\n".encode()
    assert changed.parts == (
        File(name=".env", data=now, sha256=codec.sha256_hex(now), size=len(now)),
    )
    assert findings == [("parts[0].data", "openai-key", "replaced")]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (File(mime="image/png", data=_KEY.encode()), f"image/png, {len(_KEY)} bytes"),
        (File(data=b"\xff\x00" + _KEY.encode()), f"unknown type, {len(_KEY) + 2} bytes"),
        (File(mime="text/plain", sha256="0" * 64, size=12_345), "text/plain, 12,345 bytes"),
        (File(sha256="0" * 64), "unknown type, unknown size"),
    ],
)
def test_what_is_not_text_or_not_there_is_reported_and_left_alone(file: File, told: str) -> None:
    message = _with(file)
    changed, findings = redact_message(message, _USING)
    assert changed is message
    assert [(one.where, one.detector, one.preview, one.action) for one in findings] == [
        ("parts[0].data", "", told, "not looked into")
    ]


@pytest.mark.parametrize(
    ("name", "mime", "text"),
    [
        ("a.bin", "text/plain; charset=utf-8", True),
        ("a", "application/json", True),
        ("a", "application/vnd.api+json", True),
        ("a", "image/svg+xml", True),
        ("a.txt", "image/png", False),
        ("a", "application/pdf", False),
        ("notes.MD", None, True),
        ("a.bin", "application/octet-stream", True),
        ("cat.png", None, True),
        (None, "", True),
    ],
)
def test_a_file_may_be_text_unless_its_type_says_otherwise(
    name: str | None, mime: str | None, text: bool
) -> None:
    assert is_text_file(File(name=name, mime=mime, data=b"")) is text


@pytest.mark.parametrize("mime", [None, "", "application/octet-stream"])
def test_a_key_in_a_file_of_no_told_type_does_not_go_out(mime: str | None) -> None:
    """If it is text it is scanned; if not, it is reported as not looked into."""
    secret = File(name="dump", mime=mime, data=f"key: {_KEY}\n".encode())
    changed, findings = redact_message(_with(secret), _USING)
    assert _KEY not in repr(changed)
    assert [one.action for one in findings] == ["replaced"]
    binary = _with(File(name="dump", mime=mime, data=b"\xff\xfe\x00"))
    same, findings = redact_message(binary, _USING)
    assert same is binary
    assert [one.action for one in findings] == ["not looked into"]


@pytest.mark.parametrize(
    ("encoding", "mime"),
    [
        *(("latin-1", mime) for mime in ("text/plain", None, "application/x-unknown")),
        *((encoding, None) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
        *((encoding, "text/csv") for encoding in ("utf-8-sig", "cp1252", "utf-16")),
    ],
)
def test_a_text_file_keeps_its_encoding(encoding: str, mime: str | None) -> None:
    text = f"clé, déjà vu: {_KEY}\r\n"
    changed, findings = redact_message(_with(File(mime=mime, data=text.encode(encoding))), _USING)
    assert changed.parts == (File(mime=mime, data=text.replace(_KEY, _MARK).encode(encoding)),)
    assert [one.action for one in findings] == ["replaced"]


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x89PNG\r\n\x1a\n\xff", b"\x00\x01\x02\xff"])
def test_binary_data_is_no_text(data: bytes) -> None:
    assert decode_file(File(data=data)) is None


# ----------------------------------------------------------------------------- parts and lists


def test_a_secret_that_two_parts_share_is_taken_out_of_both() -> None:
    changed, findings = _redacted(_with(Text(f"use {_KEY[:9]}"), Text(f"{_KEY[9:]} now")))
    assert changed.parts == (Text(f"use {_MARK}"), Text(f"{_MARK} now"))
    assert [where for where, _, _ in findings] == ["parts[0].text", "parts[1].text"]


def test_a_secret_that_pieces_of_a_result_share() -> None:
    result = ToolResult("c", (Text(f"use {_KEY[:30]}"), Text(_KEY[30:]), Text(" now")))
    changed, _ = _redacted(_with(result))
    assert changed.parts == (ToolResult("c", (Text(f"use {_MARK}"), Text(_MARK), Text(" now"))),)


def test_a_part_that_begins_with_a_word_keeps_it() -> None:
    """A whole key at the end of a part does not continue with the next."""
    changed, _ = _redacted(_with(Text(f"use {_KEY}"), Text("Then go on.")))
    assert changed.parts == (Text(f"use {_MARK}"), Text("Then go on."))


def test_parts_with_another_in_between_are_not_joined() -> None:
    call = ToolCall("c", "run", {})
    message = _with(Text(f"use {_KEY[:9]}"), call, Text(f"{_KEY[9:]} now"))
    assert redact_message(message, _USING) == (message, [])


def test_the_words_of_a_command_are_judged_together() -> None:
    given: JSON = ["sshpass", "-p", "sword" + "fish", "ssh", "host"]
    assert redact_json({"argv": given}, _USING) == (
        {"argv": ["sshpass", "-p", "[redacted: command password]", "ssh", "host"]},
        [FoundSecret("argv[2]", "command-password", "sw… (9 characters)")],
    )
    assert redact_json(["pass", "the", "salt", "and", "the", "key"], _USING)[1] == []


# ---------------------------------------------------------------------------------------- sealed

_SIGNED: Final = Thinking(f"the key is {_KEY}", "c2lnbmVk" * 8)
_CLEAN: Final = Thinking("nothing here", "b3RoZXI=" * 8)
_NOTE: Final = Raw("anthropic", {"part": {}, "of": "thinking"})
_HIDDEN: Final = Raw("anthropic", {"content": {"type": "redacted_thinking", "data": "ZGF0YQ=="}})


def test_signed_thinking_with_a_secret_is_left_out_whole_with_its_note() -> None:
    said = Text("done")
    changed, findings = _redacted(_with(_SIGNED, _NOTE, said))
    assert changed.parts == (said,)
    assert findings == [("parts[0].text", "openai-key", "left out")]


def test_the_signed_thoughts_of_a_message_go_together() -> None:
    call = ToolCall("c", "run", {"key": _KEY})
    changed, findings = _redacted(_with(_CLEAN, _NOTE, _HIDDEN, _SIGNED, _NOTE, Text("a"), call))
    assert changed.parts == (Text("a"), ToolCall("c", "run", {"key": _MARK}))
    assert [where for where, _, action in findings if action == "left out"] == ["parts[3].text"]


def test_signed_thinking_without_a_secret_stays_as_it_is() -> None:
    """Also when its signature happens to look like a secret."""
    parts = (Thinking("hm", f"a {_KEY}"), _NOTE, _HIDDEN, Text("a"))
    changed, findings = _redacted(_with(*parts, Text(_KEY)))
    assert changed.parts == (*parts, Text(_MARK))
    assert findings == [("parts[4].text", "openai-key", "replaced")]


def test_unsigned_thinking_is_edited() -> None:
    changed, _ = _redacted(_with(Thinking(f"use {_KEY}"), Text("a")))
    assert changed.parts == (Thinking(f"use {_MARK}"), Text("a"))


def test_thinking_signed_beside_it_is_left_out_too() -> None:
    """Gemini's signatures are in the note after the part."""
    note = Raw("gemini", {"part": {"thoughtSignature": "c2ln"}, "of": "thinking"})
    changed, _ = _redacted(_with(Thinking(f"use {_KEY}"), note, Text("a"), note))
    assert changed.parts == (Text("a"), note)


def test_a_signature_beside_a_call_stays_when_the_call_is_redacted() -> None:
    note = Raw("gemini", {"part": {"thoughtSignature": f"x {_KEY}"}, "of": "tool_call"})
    changed, _ = _redacted(_with(ToolCall("c", "run", {"a": _KEY}), note))
    assert changed.parts == (ToolCall("c", "run", {"a": _MARK}), note)


_REASONING: Final[dict[str, JSON]] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": f"use {_KEY}"}],
    "encrypted_content": "Z0FBQUFB",
}


def test_sealed_data_is_left_out_whole_or_not_at_all() -> None:
    sealed, clean = (
        Raw("openai-responses", {"item": _REASONING}),
        Raw("x", {"signature": f"a {_KEY}", "b": "c"}),
    )
    changed, findings = _redacted(_with(Thinking(f"use {_KEY}"), sealed, clean, Text("a")))
    assert changed.parts == (Thinking(f"use {_MARK}"), clean, Text("a"))
    assert findings == [
        ("parts[1].data.item.summary[0].text", "openai-key", "left out"),
        ("parts[0].text", "openai-key", "replaced"),
    ]


def test_a_sealed_result_is_left_out_with_its_call() -> None:
    call = Raw("anthropic", {"content": {"type": "server_tool_use", "id": "s1", "name": "web"}})
    hit: JSON = {"type": "web_search_result", "title": _KEY, "encrypted_content": "ZW5j"}
    answer: JSON = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [hit]}
    other = Raw("anthropic", {"content": {"type": "server_tool_use", "id": "s2", "name": "web"}})
    changed, _ = _redacted(_with(call, other, Raw("anthropic", {"content": answer}), Text("a")))
    assert changed.parts == (other, Text("a"))


def test_a_sealed_piece_inside_a_result_is_left_out_whole() -> None:
    sealed = Raw("anthropic", {"content": {"title": _KEY, "encrypted_index": "ZW5j"}})
    changed, _ = _redacted(_with(ToolResult("c", (Text("a"), sealed))))
    assert changed.parts == (ToolResult("c", (Text("a"),)),)


# --------------------------------------------------------------------------------------- legality


def test_what_anthropic_is_sent_stays_legal() -> None:
    reply: dict[str, JSON] = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": f"use {_KEY}", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "text", "text": f"I use {_KEY}"},
            {"type": "tool_use", "id": "c1", "name": "run", "input": {"key": _KEY}},
        ],
    }
    answer: dict[str, JSON] = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": _KEY}],
    }
    messages = [Message.user("go"), anthropic.decode(reply), anthropic.decode(answer)]
    sent = [anthropic.encode(_redacted(message)[0]) for message in messages]
    assert legality.problems("anthropic", sent) == []
    assert sent[1]["content"] == [
        {"type": "text", "text": f"I use {_MARK}"},
        {"type": "tool_use", "id": "c1", "name": "run", "input": {"key": _MARK}},
    ]


def test_what_gemini_and_openai_are_sent_keeps_its_shape() -> None:
    thought: JSON = {"text": f"use {_KEY}", "thought": True, "thoughtSignature": "c2ln"}
    call: JSON = {
        "functionCall": {"name": "run", "args": {"key": _KEY}},
        "thoughtSignature": "c2ln",
    }
    content, _ = _redacted(gemini.decode({"role": "model", "parts": [thought, call]}))
    assert gemini.encode(content)["parts"] == [
        {"functionCall": {"name": "run", "args": {"key": _MARK}}, "thoughtSignature": "c2ln"}
    ]
    item, _ = _redacted(openai_responses.decode(_REASONING))
    assert openai_responses.encode(item) == []


# --------------------------------------------------------------------------------------- previews


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("hunter2", "h… (7 characters)"),
        ("abc", "… (3 characters)"),
        ("s" * 12, "sss… (12 characters)"),
        ("s" * 1_600, "ssss… (1,600 characters)"),
    ],
)
def test_a_preview_shows_a_quarter_at_most(secret: str, shown: str) -> None:
    assert preview(secret) == shown
