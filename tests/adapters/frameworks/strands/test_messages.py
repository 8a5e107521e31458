"""Messages of Strands are messages of ours, and come back as they were given."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import holdfast
from holdfast import File, Message, Text, Thinking, ToolCall, ToolResult
from holdfast.adapters.strands import HoldfastSessionRepository
from holdfast.values import JSON

LONG = "a long text, " * 800
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))

CALL = {"toolUse": {"toolUseId": "c-1", "name": "look", "input": {"at": "x", "n": 1.0}}}
CONTENTS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": "Hello"}, {"text": ""}],
    "extra fields": [{"type": "text", "text": "Hello", "later": {"version": 2}}],
    "lone surrogates and NUL": [{"text": "\ud800 \x00 \U0001f600"}],
    "reasoning": [
        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}}},
        {"reasoningContent": {"reasoningText": {"text": "unsigned"}}},
        {"reasoningContent": {"redactedContent": b"\x00\xff"}},
    ],
    "call": [{"text": "I look."}, {"toolUse": {**CALL["toolUse"], "reasoningSignature": "s"}}],
    "results": [
        {"toolResult": {"toolUseId": "c-1", "status": "success", "content": [{"text": "seen"}]}},
        {
            "toolResult": {
                "toolUseId": "c-2",
                "status": "error",
                "content": [{"json": {"a": [1, None]}}],
            }
        },
        {"toolResult": {"toolUseId": "c-3", "status": "success", "content": []}},
    ],
    "json that looks encoded": [
        {
            "toolResult": {
                "toolUseId": "c-1",
                "status": "success",
                "content": [{"json": {"__json_encoded__": True, "data": "x"}}, {"json": "text"}],
            }
        }
    ],
    "result and text": [
        {"toolResult": {"toolUseId": "c-1", "status": "success", "content": [{"text": "seen"}]}},
        {"text": "And now?"},
    ],
    "files": [
        {"image": {"format": "png", "source": {"bytes": PNG}}},
        {"document": {"format": "docx", "name": "Report", "source": {"bytes": b"PK"}}},
        {"audio": {"format": "mp3", "source": {"bytes": b"ID3"}}},
        {"video": {"format": "mp4", "source": {"bytes": b""}}},
        {
            "toolResult": {
                "toolUseId": "c-1",
                "status": "success",
                "content": [{"image": {"format": "webp", "source": {"bytes": PNG + b"2"}}}],
            }
        },
    ],
    "elsewhere": [
        {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://a/b"}}}},
        {"cachePoint": {"type": "default"}},
    ],
    "guarded and cited": [
        {"guardContent": {"text": {"text": "guarded", "qualifiers": ["query"]}}},
        {
            "citationsContent": {
                "content": [{"text": "cited"}],
                "citations": [{"title": "T", "location": {"web": {"url": "https://x.test"}}}],
            }
        },
    ],
    "what is not known yet": [{"hologram": {"depth": 3}}],
    "nothing": [],
}


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory:") as opened:
        yield opened


@pytest.fixture
def repository(store: holdfast.Store) -> HoldfastSessionRepository:
    made = HoldfastSessionRepository(store)
    made.create_session(Session("s", SessionType.AGENT))
    made.create_agent("s", SessionAgent("a", {}, {}))
    return made


def put(repository: HoldfastSessionRepository, message: dict[str, Any], index: int) -> None:
    repository.create_message("s", "a", SessionMessage.from_message(message, index))


def stored(store: holdfast.Store) -> Message:
    return store.session("s").messages()[-1]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_message_comes_back_as_it_was_given(
    repository: HoldfastSessionRepository, name: str, role: str
) -> None:
    message = {
        "role": role,
        "content": CONTENTS[name],
        "tracking_id": "t-1",
        "metadata": {"custom": {"k": [1, 1.0, True, None]}},
    }
    given = SessionMessage.from_message(copy.deepcopy(message), 0)
    repository.create_message("s", "a", given)
    assert repository.read_message("s", "a", 0) == given
    (listed,) = repository.list_messages("s", "a")
    assert listed == given
    assert repr(listed.to_message()) == repr(message)


def test_what_is_said_is_in_parts(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    usage = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 112, "cacheReadInputTokens": 100}
    message = {
        "role": "assistant",
        "content": [*CONTENTS["reasoning"][:1], *CONTENTS["guarded and cited"], CALL],
        "tracking_id": "t-1",
        "metadata": {"usage": usage},
    }
    put(repository, message, 0)
    found = stored(store)
    assert (found.id, found.role) == ("t-1", "assistant")
    assert found.parts[:4] == (
        Thinking("Hm", "sig"),
        Text("guarded"),
        Text("cited"),
        ToolCall("c-1", "look", {"at": "x", "n": 1.0}),
    )
    assert found.usage == holdfast.Usage(input=107, output=5, cache_read=100)
    assert [hit.message_id for hit in store.search("cited")] == ["t-1"]


def test_results_are_a_tool_message(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    put(repository, {"role": "user", "content": CONTENTS["results"]}, 0)
    found = stored(store)
    assert found.role == "tool"
    assert found.tool_results == (
        ToolResult("c-1", (Text("seen"),)),
        ToolResult("c-2", (Text('{"a": [1, null]}'),), error=True),
        ToolResult("c-3", ""),
    )
    put(repository, {"role": "user", "content": CONTENTS["result and text"]}, 1)
    assert stored(store).role == "user"


def test_files_are_files(repository: HoldfastSessionRepository, store: holdfast.Store) -> None:
    put(repository, {"role": "user", "content": CONTENTS["files"]}, 0)
    found = stored(store).files
    assert [(file.name, file.mime) for file in found] == [
        (None, "image/png"),
        ("Report", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (None, "audio/mpeg"),
        (None, "video/mp4"),
        (None, "image/webp"),
    ]
    assert store.blob(str(found[0].sha256)) == PNG


@pytest.mark.parametrize(
    "block",
    [
        {"text": LONG},
        {"reasoningContent": {"reasoningText": {"text": LONG, "signature": "s"}}},
        {"toolUse": {"toolUseId": "c", "name": "n", "input": {"text": LONG}}},
        {"toolResult": {"toolUseId": "c", "status": "success", "content": [{"text": LONG}]}},
        {"toolResult": {"toolUseId": "c", "status": "success", "content": [{"json": [LONG]}]}},
        {"citationsContent": {"content": [{"text": LONG}], "citations": []}},
    ],
    ids=["text", "reasoning", "call", "result", "json", "citation"],
)
def test_a_text_is_stored_once(
    repository: HoldfastSessionRepository, store: holdfast.Store, block: dict[str, Any]
) -> None:
    given = SessionMessage.from_message({"role": "user", "content": [block]}, 0)
    repository.create_message("s", "a", given)
    assert msgspec.json.encode(stored(store)).count(LONG.encode()) == 1
    given.redact_message = {"role": "user", "content": [{"text": LONG + "!"}]}
    repository.update_message("s", "a", given)
    assert msgspec.json.encode(stored(store)).count(LONG.encode()) == 1


def test_the_data_of_a_file_is_stored_once(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    data = bytes(range(256)) * 40
    image = {"image": {"format": "png", "source": {"bytes": data}}}
    put(repository, {"role": "user", "content": [image]}, 0)
    assert len(msgspec.json.encode(stored(store))) < 1_000
    assert store.stats().blobs == 1


# ------------------------------------------------------------------------- of other frameworks


def test_a_history_of_another_framework_is_one_of_strands(store: holdfast.Store) -> None:
    session = store.session("s")
    calls: Any = [
        {
            "id": f"call-{n}",
            "type": "function",
            "function": {"name": "look", "arguments": '{"n":1}'},
        }
        for n in (1, 2)
    ]
    session.append_from(
        "openai",
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look twice"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call-1", "content": "one"},
        {"role": "tool", "tool_call_id": "call-2", "content": "two"},
    )
    session.append(Message.assistant("Twice.", id="answer"))
    listed = HoldfastSessionRepository(store).list_messages("s", "any")
    assert [(m.message_id, m.message["role"], m.message["content"]) for m in listed] == [
        (0, "user", [{"text": "[system note]\nBe brief."}]),
        (1, "user", [{"text": "Look twice"}]),
        (
            2,
            "assistant",
            [
                {"toolUse": {"toolUseId": f"call-{n}", "name": "look", "input": {"n": 1}}}
                for n in (1, 2)
            ],
        ),
        (
            4,
            "user",
            [
                {
                    "toolResult": {
                        "toolUseId": f"call-{n}",
                        "status": "success",
                        "content": [{"text": text}],
                    }
                }
                for n, text in ((1, "one"), (2, "two"))
            ],
        ),
        (5, "assistant", [{"text": "Twice."}]),
    ]
    assert listed[-1].message["tracking_id"] == "answer"


def test_other_parts_become_blocks(store: holdfast.Store) -> None:
    session = store.session("s")
    failed = ToolResult("c", (Text("no"), File(mime="image/png", data=PNG)), error=True)
    session.append(
        Message.user(
            [
                "See",
                File(name="a.b (1).pdf", mime="application/pdf", data=b"%PDF"),
                File(name="é", mime="text/plain", data="ü".encode()),
                File(name="x.bin", mime="application/x-unknown", data=b"?"),
            ]
        ),
        Message.assistant([Thinking("Hm", "sig")], tool_calls=[ToolCall("c", "look", None)]),
        Message(role="tool", parts=(failed,)),
        Message.assistant(""),
    )
    session.summarize("They looked.")
    listed = HoldfastSessionRepository(store).list_messages("s", "any")
    assert [m.message["content"] for m in listed] == [
        [
            {"text": "See"},
            {"document": {"name": "a-b (1)-pdf", "format": "pdf", "source": {"bytes": b"%PDF"}}},
            {"document": {"name": "document", "format": "txt", "source": {"bytes": b"\xc3\xbc"}}},
            {"text": "[file: x.bin]"},
        ],
        [
            {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}}},
            {"toolUse": {"toolUseId": "c", "name": "look", "input": {}}},
        ],
        [
            {
                "toolResult": {
                    "toolUseId": "c",
                    "status": "error",
                    "content": [
                        {"text": "no"},
                        {"image": {"format": "png", "source": {"bytes": PNG}}},
                    ],
                }
            }
        ],
    ]


def test_a_message_that_another_program_amended_shows_its_parts(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    session = store.session("s")
    put(repository, {"role": "user", "content": [{"text": "I am Ann"}, {"text": "PIN 1234"}]}, 0)
    (name, _pin, *rest) = session.messages()[0].parts
    for changed, shown in (
        ([name, Text("PIN ****")], [{"text": "I am Ann"}, {"text": "PIN ****"}]),
        ([name], [{"text": "I am Ann"}]),
    ):
        session.amend(1, [*changed, *rest])
        (listed,) = repository.list_messages("s", "a")
        assert listed.message["content"] == shown


def test_an_erased_message_is_left_out(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    for index, text in enumerate(("one", "two")):
        put(repository, {"role": "user", "content": [{"text": text}]}, index)
    store.session("s").erase(1)
    (listed,) = repository.list_messages("s", "a")
    assert (listed.message_id, listed.message["content"]) == (1, [{"text": "two"}])
    assert repository.read_message("s", "a", 0) is None


@pytest.mark.parametrize("flag", ["hidden", "command"])
def test_what_no_model_may_be_sent_is_left_out(
    repository: HoldfastSessionRepository, store: holdfast.Store, flag: str
) -> None:
    store.session("s").append(Message.user("not for models", metadata={flag: True}))
    assert repository.list_messages("s", "a") == []


@pytest.mark.parametrize("count", [-1, 2**70, None, "12"])
def test_a_count_of_tokens_that_cannot_be_loses_no_message(
    repository: HoldfastSessionRepository, store: holdfast.Store, count: JSON
) -> None:
    usage = {"inputTokens": count, "outputTokens": 5, "totalTokens": count}
    message = {"role": "assistant", "content": [{"text": "x"}], "metadata": {"usage": usage}}
    put(repository, message, 0)
    assert repository.list_messages("s", "a")[0].to_message() == message
    assert stored(store).usage == holdfast.Usage(output=5)


@pytest.mark.parametrize("result", [None, {"toolUseId": "c", "content": [None, {"text": "x"}]}])
def test_a_result_of_an_unknown_shape_loses_no_message(
    repository: HoldfastSessionRepository, result: JSON
) -> None:
    message = {"role": "user", "content": [{"toolResult": result}]}
    put(repository, message, 0)
    assert repository.list_messages("s", "a")[0].to_message() == message
