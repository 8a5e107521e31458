"""The legality checkers find every broken rule by its name, and nothing in what is legal.

For every published rule a payload that breaks it and no other, next to its mended twin; long
conversations as the providers' own clients send them; and legal conversations of chance, which are
then spoilt in one known way.
"""

import copy
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadQuery
from holdfast.testing.legality import PROVIDERS, RULES, problems
from holdfast.values import JSON

Item = dict[str, JSON]
Items = list[Item]

_RULE = re.compile(r"^(messages|system)\S*: .+ \(([a-z-]+)\)$", re.DOTALL)


def _rules(provider: str, messages: Items, system: JSON = None) -> set[str]:
    """Name the rules that are broken; every sentence has to be of the promised form."""
    found = [_RULE.match(sentence) for sentence in problems(provider, messages, system)]
    return {match[2] if match else "a sentence without place and rule" for match in found}


# ------------------------------------------------------------------------------ the smallest parts


def _say(role: str, content: JSON, **more: JSON) -> Item:
    return {"role": role, "content": content, **more}


def _call(call_id: JSON = "c1", name: JSON = "look", arguments: JSON = "{}") -> Item:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _calls(*calls: JSON) -> Item:
    return _say("assistant", None, tool_calls=list(calls))


def _tool(call_id: JSON = "c1", content: JSON = "done") -> Item:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _function_call(call_id: JSON = "c1", **more: JSON) -> Item:
    item: Item = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return item | more


def _output(call_id: JSON = "c1", output: JSON = "done") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _reasoning(item_id: JSON = "rs_1", **more: JSON) -> Item:
    item: Item = {"type": "reasoning", "id": item_id, "summary": []}
    return item | more


def _text(text: JSON, **more: JSON) -> Item:
    return {"type": "text", "text": text, **more}


def _use(call_id: JSON = "c1", **more: JSON) -> Item:
    block: Item = {"type": "tool_use", "id": call_id, "name": "look", "input": {}}
    return block | more


def _result(call_id: JSON = "c1", content: JSON = "done", **more: JSON) -> Item:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def _thinking(**more: JSON) -> Item:
    block: Item = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    return block | more


def _image(mime: str = "image/png") -> Item:
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": "iVBORw0="}}


def _user(*parts: JSON) -> Item:
    return {"role": "user", "parts": list(parts)}


def _model(*parts: JSON) -> Item:
    return {"role": "model", "parts": list(parts)}


def _part(text: JSON, **more: JSON) -> Item:
    return {"text": text, **more}


def _fcall(name: JSON = "look", **more: JSON) -> Item:
    return {"functionCall": {"name": name, "args": {}, **more}}


def _fresponse(name: JSON = "look", **more: JSON) -> Item:
    answer: Item = {"name": name, "response": {"output": "done"}}
    return {"functionResponse": answer | more}


# ------------------------------------------------------------------------------------ a case a rule


class Case(NamedTuple):
    rule: str
    broken: Items
    mended: Items
    broken_system: JSON = None
    mended_system: JSON = None


_HI: Item = _say("user", "hi")
_BYE: Item = _say("user", "bye")
_OK: Item = _say("assistant", "ok")
_WEB: Item = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
_SEARCH: Item = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
_MARK: Item = {"cache_control": {"type": "ephemeral"}}

_OPENAI = [
    Case("result-has-call", [_HI, _calls(_call()), _tool(), _tool(None)], [_HI]),
    Case("not-empty", [], [_HI]),
    Case("system-place", [_HI], [_say("system", "be kind"), _HI], broken_system="be kind"),
    Case("role", [_say("summary", "we met")], [_say("developer", "we met")]),
    Case("role", [{"content": "hi"}], [_HI]),
    Case("name", [_say("user", "hi", name="Ann Lee")], [_say("user", "hi", name="Ann_Lee")]),
    Case("name", [_say("user", "hi", name="a" * 65)], [_say("user", "hi", name="a" * 64)]),
    Case("content", [_HI, _say("assistant", None)], [_HI, _say("assistant", None, refusal="no")]),
    Case("content", [_say("user", None)], [_HI]),
    Case("content", [_say("user", {"text": "hi"})], [_say("user", [_text("hi")])]),
    Case("content-empty", [_say("user", "")], [_say("user", " ")]),
    Case("content-empty", [_say("user", [])], [_say("user", [_text("hi")])]),
    Case("content-empty", [_say("user", [_text("")])], [_say("user", [_text("hi")])]),
    Case(
        "part-type",
        [_HI, _calls(_call()), _tool(content=[{"type": "image_url", "image_url": {"url": "x"}}])],
        [_HI, _calls(_call()), _tool(content=[_text("[image: x]")])],
    ),
    Case(
        "part-type",
        [_HI, _say("assistant", [{"type": "reasoning", "text": "hm"}])],
        [_HI, _say("assistant", [_text("hm"), {"type": "refusal", "refusal": "no"}])],
    ),
    Case("part-shape", [_say("user", [_text(None)])], [_say("user", [_text("hi")])]),
    Case(
        "part-shape",
        [_say("user", [{"type": "image_url", "image_url": {"url": "/tmp/cat.png"}}])],  # noqa: S108
        [_say("user", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iV"}}])],
    ),
    Case(
        "part-shape",
        [_say("user", [{"type": "file", "file": {"filename": "a.pdf"}}])],
        [_say("user", [{"type": "file", "file": {"file_data": "data:application/pdf;base64,JV"}}])],
    ),
    Case(
        "part-shape",
        [_say("user", [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "ogg"}}])],
        [_say("user", [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}])],
    ),
    Case(
        "call-place",
        [_say("user", "hi", tool_calls=[_call()]), _tool()],
        [_say("assistant", "hi", tool_calls=[_call()]), _tool()],
    ),
    Case("call-shape", [_HI, _say("assistant", "ok", tool_calls=[])], [_HI, _OK]),
    Case(
        "call-shape",
        [_HI, _calls(_call() | {"type": "web_search"}), _tool()],
        [
            _HI,
            _calls({"id": "c1", "type": "custom", "custom": {"name": "sh", "input": ""}}),
            _tool(),
        ],
    ),
    Case(
        "call-id",
        [_HI, _calls(_call("c" * 41)), _tool("c" * 41)],
        [_HI, _calls(_call("c" * 40)), _tool("c" * 40)],
    ),
    Case("call-id", [_HI, _calls(_call("")), _tool("")], [_HI, _calls(_call()), _tool()]),
    Case(
        "call-id-unique",
        [_HI, _calls(_call(), _call()), _tool()],
        [_HI, _calls(_call(), _call("c2")), _tool("c2"), _tool()],
    ),
    Case(
        "call-name",
        [_HI, _calls(_call(name="fs.read")), _tool()],
        [_HI, _calls(_call(name="fs_read")), _tool()],
    ),
    Case("call-name", [_HI, _calls(_call(name="")), _tool()], [_HI, _calls(_call()), _tool()]),
    Case(
        "call-arguments",
        [_HI, _calls(_call(arguments={"path": "a"})), _tool()],
        [_HI, _calls(_call(arguments='{"path": ')), _tool()],
    ),
    Case("call-answered", [_HI, _calls(_call()), _BYE], [_HI, _calls(_call()), _tool(), _BYE]),
    Case("call-answered", [_HI, _calls(_call())], [_HI, _calls(_call()), _tool()]),
    Case(
        "call-answered",
        [_HI, _calls(_call(), _call("c2")), _tool()],
        [_HI, _calls(_call(), _call("c2")), _tool(), _tool("c2")],
    ),
    Case("result-has-call", [_tool(), _HI], [_HI]),
    Case("result-has-call", [_HI, _calls(_call()), _tool(), _tool("c9")], [_HI, _OK]),
    Case(
        "result-has-call",
        [_HI, _calls(_call()), _tool(), _BYE, _tool()],
        [_HI, _calls(_call()), _tool(), _BYE, _calls(_call()), _tool()],
    ),
    Case(
        "one-result",
        [_HI, _calls(_call()), _tool(), _tool()],
        [_HI, _calls(_call()), _tool()],
    ),
]

_RESPONSES = [
    Case(
        "content-empty",
        [_say("user", [{"type": "input_text", "text": ""}])],
        [_say("user", [{"type": "input_text", "text": " "}])],
    ),
    Case("not-empty", [], [_HI]),
    Case("system-place", [_HI], [_HI], broken_system="", mended_system="be kind"),
    Case("item-type", [_HI, {"type": "summary", "text": "x"}], [_HI]),
    Case("role", [_say("tool", "done")], [_say("developer", "done")]),
    Case("content", [_say("user", None)], [_HI]),
    Case("content-empty", [_say("user", "")], [_HI]),
    Case(
        "content-empty", [_say("user", [])], [_say("user", [{"type": "input_text", "text": "a"}])]
    ),
    Case(
        "part-type",
        [_HI, _say("assistant", [{"type": "input_text", "text": "ok"}])],
        [_HI, _say("assistant", [{"type": "output_text", "text": "ok", "annotations": []}])],
    ),
    Case(
        "part-type",
        [_say("user", [_text("hi")])],
        [_say("user", [{"type": "input_text", "text": "hi"}])],
    ),
    Case(
        "part-shape",
        [_say("user", [{"type": "input_image", "detail": "auto"}])],
        [_say("user", [{"type": "input_image", "image_url": "data:image/png;base64,iV"}])],
    ),
    Case(
        "part-shape",
        [_say("user", [{"type": "input_file", "filename": "a.pdf"}])],
        [_say("user", [{"type": "input_file", "filename": "a.pdf", "file_id": "file-1"}])],
    ),
    Case(
        "part-shape",
        [_HI, _say("assistant", [{"type": "refusal", "text": "no"}])],
        [_HI, _say("assistant", [{"type": "refusal", "refusal": "no"}])],
    ),
    Case(
        "item-id",
        [_HI, _function_call(id="call_1"), _output()],
        [_HI, _function_call(id="fc_1"), _output()],
    ),
    Case("item-id", [_HI, _OK | {"id": "msg_1|2"}], [_HI, _OK | {"id": "msg_12"}]),
    Case("item-id", [_HI, _OK | {"id": "msg_" + "0" * 61}], [_HI, _OK | {"id": "msg_" + "0" * 60}]),
    Case(
        "item-id-unique",
        [_HI, _OK | {"id": "msg_1"}, _BYE, _OK | {"id": "msg_1"}],
        [_HI, _OK | {"id": "msg_1"}, _BYE, _OK | {"id": "msg_2"}],
    ),
    Case(
        "reasoning-shape",
        [_HI, {"type": "reasoning", "id": "rs_1"}, _OK],
        [_HI, _reasoning(), _OK],
    ),
    Case(
        "reasoning-shape",
        [_HI, {"type": "reasoning", "summary": [], "encrypted_content": "x"}, _OK],
        [_HI, _reasoning(encrypted_content="x"), _OK],
    ),
    Case("reasoning-followed", [_HI, _reasoning(), _BYE], [_HI, _reasoning(), _OK, _BYE]),
    Case("reasoning-followed", [_HI, _reasoning()], [_HI, _reasoning(), _reasoning("rs_2"), _OK]),
    Case(
        "reasoning-followed",
        [_HI, _function_call(), _reasoning(), _output()],
        [_HI, _reasoning(), _function_call(), _output()],
    ),
    Case(
        "call-id",
        [_HI, _function_call("c" * 65), _output("c" * 65)],
        [_HI, _function_call("c" * 64), _output("c" * 64)],
    ),
    Case(
        "call-id-unique",
        [_HI, _function_call(), _output(), _BYE, _function_call()],
        [_HI, _function_call(), _output(), _BYE, _function_call("c2"), _output("c2")],
    ),
    Case(
        "call-name",
        [_HI, _function_call(name="fs.read"), _output()],
        [_HI, _function_call(name="fs-read"), _output()],
    ),
    Case(
        "call-arguments",
        [_HI, _function_call(arguments={}), _output()],
        [_HI, _function_call(arguments="not JSON"), _output()],
    ),
    Case(
        "output-shape",
        [_HI, _function_call(), _output(output={"ok": True})],
        [_HI, _function_call(), _output(output=[{"type": "input_text", "text": "ok"}])],
    ),
    Case("call-answered", [_HI, _function_call(), _BYE], [_HI, _function_call(), _output(), _BYE]),
    Case("result-has-call", [_HI, _output()], [_HI]),
    Case(
        "result-has-call",
        [_HI, _function_call("c2"), _output("c2"), _output()],
        [_HI, _function_call("c2"), _function_call(), _output(), _output("c2")],
    ),
    Case(
        "one-result",
        [_HI, _function_call(), _output(), _output()],
        [_HI, _function_call(), _output(output="")],
    ),
]

_ANTHROPIC = [
    Case(
        "source",
        [_say("user", [{"type": "image", "source": {"type": "data"}}])],
        [_say("user", [{"type": "image", "source": {"type": "url", "url": "https://a.example"}}])],
    ),
    Case(
        "content",
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content={"ok": True})])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content=[_text("ok")])])],
    ),
    Case(
        "block-type",
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content=[_use()])])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content=[_image()])])],
    ),
    Case("not-empty", [], [_HI]),
    Case("system-place", [_HI], [_HI], broken_system=[_image()], mended_system=[_text("be kind")]),
    Case("system-place", [_HI], [_HI], broken_system=[], mended_system="be kind"),
    Case("role", [_HI, _OK, _say("system", "be kind")], [_HI, _OK], mended_system="be kind"),
    Case("fields", [_HI | {"id": "m1"}], [_HI]),
    Case("first-user", [_OK, _HI], [_HI]),
    Case("alternate", [_HI, _BYE], [_HI, _OK, _BYE]),
    Case("alternate", [_HI, _OK, _OK, _BYE], [_HI, _OK, _BYE]),
    Case("content", [_say("user", None)], [_HI]),
    Case("content", [_say("user", [_text(None)])], [_say("user", [_text("hi")])]),
    Case("content-empty", [_HI, _say("assistant", []), _BYE], [_HI, _OK, _BYE]),
    Case("text-empty", [_say("user", [_text("")])], [_say("user", [_text("hi")])]),
    Case("text-empty", [_say("user", " \n")], [_say("user", " \nhi")]),
    Case(
        "text-empty",
        [_HI, _say("assistant", [_text("\n\n"), _use()]), _say("user", [_result()])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content="")])],
    ),
    Case("text-empty", [_HI], [_HI], broken_system=" ", mended_system="be kind"),
    Case("block-type", [_HI, _say("assistant", [_image()])], [_say("user", [_image()])]),
    Case("block-type", [_say("user", [_thinking()])], [_say("user", [_text("hm")])]),
    Case(
        "source",
        [_say("user", [_image("image/tiff")])],
        [_say("user", [_image("image/webp")])],
    ),
    Case(
        "source",
        [_say("user", [{"type": "document", "title": "a.pdf"}])],
        [_say("user", [{"type": "document", "source": {"type": "file", "file_id": "f"}}])],
    ),
    Case(
        "call-id",
        [_HI, _say("assistant", [_use("bash:0")]), _say("user", [_result("bash:0")])],
        [_HI, _say("assistant", [_use("bash_0")]), _say("user", [_result("bash_0")])],
    ),
    Case(
        "call-id-unique",
        [
            _HI,
            _say("assistant", [_use()]),
            _say("user", [_result()]),
            _say("assistant", [_use()]),
            _say("user", [_result()]),
        ],
        [
            _HI,
            _say("assistant", [_use()]),
            _say("user", [_result()]),
            _say("assistant", [_use("c2")]),
            _say("user", [_result("c2")]),
        ],
    ),
    Case(
        "call-name",
        [_HI, _say("assistant", [_use(name="n" * 129)]), _say("user", [_result()])],
        [_HI, _say("assistant", [_use(name="n" * 128)]), _say("user", [_result()])],
    ),
    Case(
        "call-input",
        [_HI, _say("assistant", [_use(input="{}")]), _say("user", [_result()])],
        [_HI, _say("assistant", [_use(input={})]), _say("user", [_result()])],
    ),
    Case(
        "call-answered",
        [_HI, _say("assistant", [_use()]), _BYE],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(), _text("bye")])],
    ),
    Case(
        "call-answered",
        [_HI, _say("assistant", [_use(), _use("c2")]), _say("user", [_result()])],
        [_HI, _say("assistant", [_use(), _use("c2")]), _say("user", [_result("c2"), _result()])],
    ),
    Case("result-has-call", [_say("user", [_result()])], [_HI]),
    Case(
        "result-has-call",
        [_HI, _OK, _say("user", [_result(), _text("bye")])],
        [_HI, _say("assistant", [_text("ok"), _use()]), _say("user", [_result(), _text("bye")])],
    ),
    Case(
        "one-result",
        [_HI, _say("assistant", [_use()]), _say("user", [_result(), _result()])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result()])],
    ),
    Case(
        "results-first",
        [_HI, _say("assistant", [_use()]), _say("user", [_text("look"), _result()])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(), _text("look")])],
    ),
    Case(
        "error-result",
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content="", is_error=True)])],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content="no", is_error=True)])],
    ),
    Case(
        "error-result",
        [
            _HI,
            _say("assistant", [_use()]),
            _say("user", [_result(content=[_image()], is_error=True)]),
        ],
        [_HI, _say("assistant", [_use()]), _say("user", [_result(content=[_image()])])],
    ),
    Case(
        "server-result",
        [_HI, _say("assistant", [_WEB, _text("ok")])],
        [_HI, _say("assistant", [_SEARCH, _WEB, _text("ok")])],
    ),
    Case(
        "signature",
        [_HI, _say("assistant", [{"type": "thinking", "thinking": "hm"}, _text("ok")]), _BYE],
        [_HI, _say("assistant", [_thinking(thinking=""), _text("ok")]), _BYE],
    ),
    Case(
        "signature",
        [_HI, _say("assistant", [{"type": "redacted_thinking"}, _text("ok")]), _BYE],
        [_HI, _say("assistant", [{"type": "redacted_thinking", "data": "E"}, _text("ok")]), _BYE],
    ),
    Case(
        "thinking-first",
        [_HI, _say("assistant", [_text("ok"), _thinking(), _use()]), _say("user", [_result()])],
        [_HI, _say("assistant", [_thinking(), _text("ok"), _use()]), _say("user", [_result()])],
    ),
    Case(
        "thinking-last",
        [_HI, _say("assistant", [_thinking()]), _BYE],
        [_HI, _say("assistant", [_thinking(), _text("ok")]), _BYE],
    ),
    Case(
        "prefill", [_HI, _say("assistant", "The answer: ")], [_HI, _say("assistant", "The answer:")]
    ),
    Case("prefill", [_HI, _say("assistant", [_thinking(), _text("ok")])], [_HI, _OK]),
    Case(
        "breakpoints",
        [_say("user", [_text(str(n), **_MARK) for n in range(4)])],
        [_say("user", [_text(str(n), **_MARK) for n in range(4)])],
        broken_system=[_text("be kind", **_MARK)],
        mended_system=[_text("be kind")],
    ),
    Case(
        "breakpoints",
        [_HI, _say("assistant", [_thinking(**_MARK), _text("ok")]), _BYE],
        [_HI, _say("assistant", [_thinking(), _text("ok", **_MARK)]), _BYE],
    ),
]

_G_HI: Item = _user(_part("hi"))
_G_OK: Item = _model(_part("ok"))
_G_CALL: Item = _model(_fcall())
_G_DONE: Item = _user(_fresponse())

_GEMINI = [
    Case("part-shape", [_user(_part(7))], [_user(_part("7"))]),
    Case("not-empty", [], [_G_HI]),
    Case(
        "system-place",
        [_G_HI],
        [_G_HI],
        broken_system={"parts": [{"text": ""}]},
        mended_system={"parts": [{"text": "be kind"}]},
    ),
    Case("role", [_G_HI, {"role": "assistant", "parts": [_part("ok")]}], [_G_HI, _G_OK]),
    Case("fields", [_G_HI | {"content": "hi"}], [_G_HI]),
    Case("first-user", [_G_OK, _G_HI], [_G_HI]),
    Case("alternate", [_G_HI, _G_HI], [_G_HI, _G_OK, _G_HI]),
    Case("parts", [_user()], [_G_HI]),
    Case("parts", [{"role": "user"}], [_G_HI]),
    Case("part-data", [_user({})], [_G_HI]),
    Case(
        "part-data",
        [_G_HI, _model(_part("ok") | _fcall()), _G_DONE],
        [_G_HI, _model(_part("ok"), _fcall()), _G_DONE],
    ),
    Case(
        "part-shape",
        [_user({"inlineData": {"data": "iVBORw0="}})],
        [_user({"inline_data": {"mime_type": "image/png", "data": "iVBORw0="}})],
    ),
    Case(
        "part-shape",
        [_user({"fileData": {"mimeType": "image/png"}})],
        [_user({"fileData": {"mimeType": "image/png", "fileUri": "gs://a/b.png"}})],
    ),
    Case("text-empty", [_user(_part(""))], [_G_HI]),
    Case(
        "text-empty", [_G_HI, _model(_part(""))], [_G_HI, _model(_part("", thoughtSignature="s"))]
    ),
    Case("call-place", [_user(_part("hi"), _fcall())], [_G_HI, _G_CALL, _G_DONE]),
    Case("call-place", [_G_HI, _model(_fresponse())], [_G_HI, _G_CALL, _G_DONE]),
    Case(
        "call-name",
        [_G_HI, _model(_fcall("2nd")), _user(_fresponse("2nd"))],
        [_G_HI, _model(_fcall("_2.nd:x-y")), _user(_fresponse("_2.nd:x-y"))],
    ),
    Case(
        "call-name",
        [_G_HI, _model(_fcall("n" * 65)), _user(_fresponse("n" * 65))],
        [_G_HI, _model(_fcall("n" * 64)), _user(_fresponse("n" * 64))],
    ),
    Case("call-args", [_G_HI, _model(_fcall(args="{}")), _G_DONE], [_G_HI, _G_CALL, _G_DONE]),
    Case(
        "response-object",
        [_G_HI, _G_CALL, _user(_fresponse(response="done"))],
        [_G_HI, _G_CALL, _user(_fresponse(response={"output": "done"}))],
    ),
    Case("same-number", [_G_HI, _G_CALL], [_G_HI, _G_CALL, _G_DONE]),
    Case("same-number", [_G_HI, _G_CALL, _G_HI], [_G_HI, _G_CALL, _user(_fresponse(), _part("a"))]),
    Case(
        "same-number",
        [_G_HI, _G_CALL, _user(_fresponse(), _fresponse())],
        [_G_HI, _model(_fcall(), _fcall()), _user(_fresponse(), _fresponse())],
    ),
    Case("result-has-call", [_G_HI, _G_OK, _G_DONE], [_G_HI, _G_CALL, _G_DONE]),
    Case("result-has-call", [_G_DONE], [_G_HI]),
    Case(
        "same-names",
        [_G_HI, _G_CALL, _user(_fresponse("find"))],
        [_G_HI, _model(_fcall("find")), _user(_fresponse("find"))],
    ),
    Case(
        "same-ids",
        [_G_HI, _model(_fcall(id="c1")), _user(_fresponse(id="c2"))],
        [_G_HI, _model(_fcall(id="c1")), _user(_fresponse(id="c1"))],
    ),
    Case(
        "same-ids",
        [_G_HI, _model(_fcall(id="c1")), _G_DONE],
        [_G_HI, _G_CALL, _G_DONE],
    ),
    Case(
        "call-id-unique",
        [
            _G_HI,
            _model(_fcall(id="c"), _fcall(id="c")),
            _user(_fresponse(id="c"), _fresponse(id="c")),
        ],
        [
            _G_HI,
            _model(_fcall(id="c"), _fcall(id="d")),
            _user(_fresponse(id="d"), _fresponse(id="c")),
        ],
    ),
]

_CASES = {
    "openai": _OPENAI,
    "openai-responses": _RESPONSES,
    "anthropic": _ANTHROPIC,
    "gemini": _GEMINI,
}
_EACH = [
    pytest.param(provider, case, id=f"{provider}-{case.rule}-{number}")
    for provider, cases in _CASES.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("provider", "case"), _EACH)
def test_the_broken_payload_is_found_by_its_rule_alone(provider: str, case: Case) -> None:
    assert _rules(provider, case.broken, case.broken_system) == {case.rule}


@pytest.mark.parametrize(("provider", "case"), _EACH)
def test_its_mended_twin_is_legal(provider: str, case: Case) -> None:
    assert problems(provider, case.mended, case.mended_system) == []


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    tested = {(provider, case.rule) for provider, cases in _CASES.items() for case in cases}
    assert tested == {(rule.provider, rule.name) for rule in RULES}


def test_every_rule_says_what_it_is_and_where_it_is_known_from() -> None:
    names = [(rule.provider, rule.name) for rule in RULES]
    assert len(set(names)) == len(names)
    assert {rule.provider for rule in RULES} == set(PROVIDERS)
    assert all(rule.says.endswith(".") and rule.source.endswith((".", ")")) for rule in RULES)


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadQuery, match="openai, openai-responses, anthropic, gemini"):
        problems("azure", [_HI])


def test_a_sentence_names_the_place_and_the_rule() -> None:
    assert problems("openai", [_HI, _calls(_call("c7")), _BYE]) == [
        "messages[1]: call 'c7' has no tool message directly after it (call-answered)"
    ]


# ------------------------------------------------------------------------- conversations that work


_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
)

_LONG: dict[str, tuple[Items, JSON]] = {
    "openai": (
        [
            _say("developer", "You help with parcels."),
            _say("assistant", "Your parcel has arrived at the depot."),
            _say(
                "user",
                [
                    _text("Is it this one?"),
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "low"},
                    },
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:;base64,JV"}},
                ],
                name="ann",
            ),
            _say(
                "assistant",
                None,
                tool_calls=[
                    _call("call_1", "track", '{"parcel": 42}'),
                    _call("call_2", "track", '{"parcel": 43}'),
                    _call("call_3", "weather", ""),
                ],
            ),
            _tool("call_2", "at the depot"),
            _tool("call_1", [_text("on the road"), _text("since noon")]),
            _tool("call_3", ""),
            _say("assistant", "", tool_calls=[_call("call_1", "track")]),
            _tool("call_1", "still on the road"),
            _say("assistant", "It is on the road."),
            _say("user", "Whose is it?"),
            _say("assistant", None, refusal="I cannot say whose it is."),
            _say("user", "Pity."),
            _say("user", "Anything else?"),
            _say("assistant", [{"type": "refusal", "refusal": "I cannot go on with this."}]),
            _say("user", "Good bye."),
        ],
        None,
    ),
    "openai-responses": (
        [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "You help with parcels."}],
            },
            _say(
                "user",
                [
                    {"type": "input_text", "text": "Is it this one?"},
                    {
                        "type": "input_image",
                        "detail": "auto",
                        "image_url": "data:image/png;base64,iV",
                    },
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:;base64,JV"},
                ],
            ),
            _reasoning(
                "rs_1", encrypted_content="gAAAA", summary=[{"type": "summary_text", "text": "hm"}]
            ),
            _function_call("call_1", id="fc_1", status="completed"),
            _function_call("call_2", id="fc_2", status="completed", arguments='{"parcel": 43}'),
            _output("call_2", "at the depot"),
            _output("call_1", [{"type": "input_image", "image_url": "https://a.example/b.png"}]),
            _reasoning("rs_2", encrypted_content="gAAAB"),
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "parcel 42"},
            },
            _reasoning("rs_3", encrypted_content="gAAAC"),
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "It is on the road.", "annotations": []},
                    {"type": "refusal", "refusal": "I cannot say whose it is."},
                ],
            },
            _say("user", "Run it."),
            {"type": "custom_tool_call", "call_id": "call_3", "name": "sh", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "call_3", "output": "a.pdf"},
            _say("assistant", "There is one file."),
            _say("user", "Good bye."),
        ],
        "Answer in one sentence.",
    ),
    "anthropic": (
        [
            _say(
                "user",
                [_text("Is it this one?"), _image(), _text("And this?"), _image("image/gif")],
            ),
            _say(
                "assistant",
                [
                    _thinking(thinking="Two parcels: ask for both."),
                    {"type": "redacted_thinking", "data": "EmwKAhgB"},
                    _text("I look for both."),
                    _use("toolu_1", input={"parcel": 42}),
                    _use("toolu_2", input={"parcel": 43}),
                ],
            ),
            _say(
                "user",
                [
                    _result("toolu_2", [_text("at the depot"), _image()]),
                    _result("toolu_1", "no such parcel", is_error=True),
                    _text("Hurry up."),
                ],
            ),
            _say("assistant", [_thinking(thinking=""), _use("toolu_3")]),
            _say("user", [_result("toolu_3", "")]),
            _say("assistant", [_SEARCH, _WEB, _text("It is on the road.", citations=[])]),
            _say("user", [_text("Good bye.", cache_control={"type": "ephemeral"})]),
        ],
        [_text("You help with parcels."), _text("Be brief.", cache_control={"type": "ephemeral"})],
    ),
    "gemini": (
        [
            _user(
                _part("Is it this one?"), {"inlineData": {"mimeType": "image/png", "data": _PNG}}
            ),
            _model(
                _part("Two parcels: ask for both.", thought=True),
                _part("I look for both."),
                _fcall("track", id="f1", args={"parcel": 42}) | {"thoughtSignature": "c2ln"},
                _fcall("track", id="f2", args={"parcel": 43}),
            ),
            _user(
                _fresponse("track", id="f1", response={"error": "no such parcel"}),
                _fresponse("track", id="f2", response={"output": "at the depot"}),
                _part("Hurry up."),
            ),
            _model({"function_call": {"name": "weather"}, "thought_signature": "c2ln"}),
            _user({"function_response": {"name": "weather", "response": {}}}),
            _model(_part("It is on the road."), _part("", thoughtSignature="c2ln")),
            _user(_part("Good bye.")),
        ],
        {"parts": [{"text": "You help with parcels."}]},
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_long_conversation_is_legal(provider: str) -> None:
    """Parallel calls, images, files, signed thinking, refusals, errors: all of it is accepted."""
    messages, system = _LONG[provider]
    assert problems(provider, messages, system) == []
    assert problems(provider, tuple(messages), system) == []


_JUNK: list[JSON] = [None, True, 0, -1.5, "", "user", [], [[]], {}, {"type": []}, [{"id": {}}]]


def _places(value: JSON) -> list[tuple[dict[str, JSON] | list[JSON], str | int]]:
    """Find every field and item in a payload, at any depth."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    here = [(value, key) for key in keys]
    return here + [place for _, key in here for place in _places(value[key])]  # type: ignore[index]


@pytest.mark.parametrize("provider", PROVIDERS)
@given(data=st.data())
def test_junk_in_any_place_gets_sentences_and_no_exception(
    provider: str, data: st.DataObject
) -> None:
    messages, system = copy.deepcopy(_LONG[provider])
    for _ in range(data.draw(st.integers(1, 3))):
        inside = [place for message in messages for place in _places(message)]
        container, key = data.draw(st.sampled_from(inside))
        junk = copy.deepcopy(data.draw(st.sampled_from(_JUNK)))
        container[key] = junk  # type: ignore[index]
    assert "a sentence without place and rule" not in _rules(provider, messages, system)
    assert "a sentence without place and rule" not in _rules(provider, [_HI], [*messages])


# ----------------------------------------------------------------- legal by chance, and then spoilt


# Each rule has cases of its own above; these show that they hold together.
_fewer = settings(max_examples=settings().max_examples // 4)


class Chat(NamedTuple):
    """How one provider writes the four things a conversation is made of."""

    user: Callable[[str], Item]
    assistant: Callable[[str], Item]
    calls: Callable[[list[str]], Items]
    results: Callable[[list[str]], Items]


_CHATS = {
    "openai": Chat(
        lambda text: _say("user", text),
        lambda text: _say("assistant", text),
        lambda ids: [_calls(*(_call(call_id) for call_id in ids))],
        lambda ids: [_tool(call_id) for call_id in ids],
    ),
    "openai-responses": Chat(
        lambda text: _say("user", text),
        lambda text: _say("assistant", text),
        lambda ids: [_function_call(call_id) for call_id in ids],
        lambda ids: [_output(call_id) for call_id in ids],
    ),
    "anthropic": Chat(
        lambda text: _say("user", [_text(text)]),
        lambda text: _say("assistant", [_text(text)]),
        lambda ids: [_say("assistant", [_thinking(), *(_use(call_id) for call_id in ids)])],
        lambda ids: [_say("user", [_result(call_id) for call_id in ids])],
    ),
    "gemini": Chat(
        lambda text: _user(_part(text)),
        lambda text: _model(_part(text)),
        lambda ids: [_model(*(_fcall(id=call_id) for call_id in ids))],
        lambda ids: [_user(*(_fresponse(id=call_id) for call_id in ids))],
    ),
}


class Talk(NamedTuple):
    """A legal conversation, and where its results and its plain texts are."""

    messages: Items
    results: list[int]
    texts: list[int]


@st.composite
def _talks(draw: st.DrawFn, provider: str) -> Talk:
    """Draw turns: a user's text, some exchanges of some calls each, and the assistant's text."""
    chat = _CHATS[provider]
    talk = Talk([], [], [])
    number = 0
    words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9).filter(str.strip)
    for size in draw(st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=4)):
        talk.texts.append(len(talk.messages))
        talk.messages.append(chat.user(draw(words)))
        for calls in size:
            ids = [f"c{number + at}" for at in range(calls)]
            number += calls
            talk.messages.extend(chat.calls(ids))
            answers = chat.results(draw(st.permutations(ids)))
            talk.results.extend(range(len(talk.messages), len(talk.messages) + len(answers)))
            talk.messages.extend(answers)
        talk.texts.append(len(talk.messages))
        # White space at the very end would be a fault of its own, for one of the four.
        talk.messages.append(chat.assistant(draw(words).strip()))
    return talk


def _drawn(provider: str, data: st.DataObject) -> Talk:
    talk = data.draw(_talks(provider))
    assert problems(provider, talk.messages) == []
    return copy.deepcopy(talk)


def _inside(message: Item) -> list[JSON]:
    """Return the list of blocks or parts in a message."""
    held = message.get("parts") or message.get("content")
    assert isinstance(held, list)
    return held


def _is_flat(provider: str) -> bool:
    """Tell whether each result is a message of its own."""
    return provider in {"openai", "openai-responses"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_a_result_taken_out_is_noticed(provider: str, data: st.DataObject) -> None:
    talk = _drawn(provider, data)
    assume(talk.results)
    at = data.draw(st.sampled_from(talk.results))
    if _is_flat(provider):
        del talk.messages[at]
    else:
        _inside(talk.messages[at]).pop(0)
    assert _rules(provider, talk.messages) & {"call-answered", "same-number"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_a_result_that_comes_twice_is_noticed(provider: str, data: st.DataObject) -> None:
    talk = _drawn(provider, data)
    assume(talk.results)
    at = data.draw(st.sampled_from(talk.results))
    if _is_flat(provider):
        talk.messages.insert(at, talk.messages[at])
    else:
        _inside(talk.messages[at]).insert(0, _inside(talk.messages[at])[0])
    assert _rules(provider, talk.messages) & {"one-result", "same-number"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_a_result_of_nobodys_call_is_noticed(provider: str, data: st.DataObject) -> None:
    talk = _drawn(provider, data)
    chat = _CHATS[provider]
    at = data.draw(st.sampled_from(talk.texts))
    if _is_flat(provider):
        talk.messages[at:at] = chat.results(["gone"])
    else:
        talk.messages[at] = chat.results(["gone"])[0]
    assert _rules(provider, talk.messages) & {"result-has-call", "same-ids", "same-number"}


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
@_fewer
@given(data=st.data())
def test_a_message_by_the_other_side_is_noticed(provider: str, data: st.DataObject) -> None:
    talk = _drawn(provider, data)
    at = data.draw(st.integers(0, len(talk.messages) - 1))
    other = {"anthropic": "assistant", "gemini": "model"}[provider]
    message = talk.messages[at]
    message["role"] = "user" if message["role"] == other else other
    assert _rules(provider, talk.messages) & {"first-user", "alternate"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_a_call_by_somebody_else_is_noticed(provider: str, data: st.DataObject) -> None:
    """A result that became a user's message leaves its call unanswered."""
    talk = _drawn(provider, data)
    assume(talk.results)
    talk.messages[data.draw(st.sampled_from(talk.results))] = _CHATS[provider].user("hi")
    assert _rules(provider, talk.messages) & {"call-answered", "same-number"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_an_emptied_text_is_noticed(provider: str, data: st.DataObject) -> None:
    talk = _drawn(provider, data)
    at = data.draw(st.sampled_from(talk.texts))
    chat = _CHATS[provider]
    speaker = chat.user if talk.messages[at]["role"] == "user" else chat.assistant
    talk.messages[at] = speaker("")
    assert _rules(provider, talk.messages) & {"content-empty", "text-empty"}


@pytest.mark.parametrize("provider", PROVIDERS)
@_fewer
@given(data=st.data())
def test_an_exchange_cut_in_two_is_noticed(provider: str, data: st.DataObject) -> None:
    """What begins at a result has lost the call, whatever follows."""
    talk = _drawn(provider, data)
    assume(talk.results)
    at = data.draw(st.sampled_from(talk.results))
    assert "result-has-call" in _rules(provider, talk.messages[at:])
