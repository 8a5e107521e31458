"""Python functions as tools: the schema, the arguments, the output."""

from __future__ import annotations

import asyncio
import enum
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import File, Text
from holdfast.agent.models.protocol import ToolSpec
from holdfast.agent.tools.function_tools import (
    NO_OUTPUT,
    ToolError,
    as_output,
    as_tool,
    error_output,
    make_tool,
    parse_arguments,
    tool,
)
from holdfast.agent.tools.protocol import Output, Tool, ToolContext
from holdfast.agent.tools.worker_thread import in_thread
from holdfast.errors import Invalid
from holdfast.values import JSON
from tests.agent.tools import Desk, refusal


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


@dataclass
class Box:
    corner: Point
    colour: Colour = Colour.RED


class Options(TypedDict, total=False):
    deep: bool


def weather(city: str, days: int = 3, *, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather
    of a city.

    More that the model is not told.

    Args:
        city: Where; a name
            such as Rome.
        days (int): How many days.

    Returns:
        city: is not described here.
    """
    return f"{city} {days} {unit}"


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk([])
    yield made
    made.close()


def call(desk: Desk, function: Callable[..., object], **arguments: JSON) -> Output:
    made = as_tool(function)
    desk.add([made])
    return asyncio.run(desk.output(made.name, **arguments))


# ------------------------------------------------------------------------------------- schema


def test_the_signature_becomes_the_schema_and_the_docstring_its_descriptions() -> None:
    spec = as_tool(weather).spec
    assert spec == ToolSpec(
        "weather",
        "Tell the weather of a city.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where; a name such as Rome."},
                "days": {"type": "integer", "description": "How many days.", "default": 3},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    )


def test_types_within_types_are_written_where_they_are_used() -> None:
    def draw(boxes: list[Box], options: Options | None = None, when: date | None = None) -> None:
        """Draw."""

    schema = as_tool(draw).spec.parameters
    assert "$ref" not in str(schema)
    box = schema["properties"]["boxes"]["items"]  # type: ignore[index, call-overload]
    assert box["properties"]["corner"] == {  # type: ignore[index, call-overload]
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    assert box["properties"]["colour"]["enum"] == ["blue", "red"]  # type: ignore[index, call-overload]


def test_a_type_that_holds_itself_stays_a_reference_that_leads_somewhere() -> None:
    def plant(tree: Tree) -> None:
        """Plant."""

    schema = as_tool(plant).spec.parameters
    inner = schema["properties"]["tree"]["properties"]["children"]  # type: ignore[index, call-overload]
    assert inner["items"] == {"$ref": "#/$defs/Tree"}  # type: ignore[index, call-overload]
    defined = schema["$defs"]["Tree"]  # type: ignore[index, call-overload]
    assert defined["properties"]["name"] == {"type": "string"}  # type: ignore[index, call-overload]


def test_a_default_that_is_no_json_is_not_told_and_still_used(desk: Desk) -> None:
    marker = object()

    def keep(what: object = marker) -> str:
        """Keep."""
        return str(what is marker)

    assert as_tool(keep).spec.parameters["properties"] == {"what": {}}
    assert call(desk, keep).content == "True"


def test_the_limits_of_a_type_are_told_and_kept(desk: Desk) -> None:
    def roll(sides: Annotated[int, msgspec.Meta(ge=2)]) -> str:
        """Roll."""
        return str(sides)

    properties = as_tool(roll).spec.parameters["properties"]
    assert properties == {"sides": {"type": "integer", "minimum": 2}}
    assert "`int` >= 2" in str(call(desk, roll, sides=1).content)


def test_what_a_model_could_not_give_cannot_be_a_tool() -> None:
    def any_number(*numbers: int) -> None: ...
    def any_name(**given: int) -> None: ...
    def nameless(number: int, /) -> None: ...
    def foreign(of: threading.Thread) -> None: ...

    for function in (any_number, any_name, nameless, foreign):
        with pytest.raises(Invalid, match="cannot be"):
            as_tool(function)
    with pytest.raises(Invalid, match="name"):
        as_tool(lambda: None)

    def several() -> Iterator[int]:
        yield 1

    for other in (several, dict.fromkeys, getattr):
        with pytest.raises(Invalid, match="cannot be"):
            as_tool(other)
    for thing in (3, Point, int):
        with pytest.raises(Invalid, match="a tool must be a function"):
            as_tool(thing)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="'no spaces'"):
        tool(name="no spaces")(weather)


# ---------------------------------------------------------------------------------- arguments


def test_arguments_are_taken_for_what_they_mean(desk: Desk) -> None:
    assert call(desk, weather, city="Rome", days="5").content == "Rome 5 C"
    assert call(desk, weather, city="Rome", days=None, unit=None).content == "Rome 3 C"

    def moved(box: Box, when: date) -> str:
        """Move."""
        return f"{box.corner.x} {box.colour.name} {when.year}"

    given: dict[str, JSON] = {"corner": {"x": "4"}, "colour": "blue"}
    assert call(desk, moved, box=given, when="2026-11-15").content == "4 BLUE 2026"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing required field `city`"),
        ({"city": 4}, "city: Expected `str`, got `int`"),
        ({"city": "x", "days": "many"}, "days: Expected `int`, got `str`"),
        ({"city": "x", "town": "y"}, "unknown field `town`"),
        ({"city": None}, "city: Expected `str`, got `null`"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_readably(
    desk: Desk, arguments: dict[str, Any], said: str
) -> None:
    output = call(desk, weather, **arguments)
    assert output.error
    assert said in str(output.content)
    assert "weather takes: city, days (optional), unit (optional)" in str(output.content)


def test_a_calls_arguments_may_be_text_or_nothing() -> None:
    assert parse_arguments({"a": 1}) == {"a": 1}
    assert parse_arguments('{"a": "x\ny"}') == {"a": "x\ny"}
    assert parse_arguments(None) == parse_arguments("") == parse_arguments(" ") == {}
    assert "not JSON" in refusal(lambda: parse_arguments("{"))
    assert "not JSON" in refusal(lambda: parse_arguments('{"a": NaN}'))
    assert "not JSON" in refusal(lambda: parse_arguments("[" * 100_000))
    assert "a list" in refusal(lambda: parse_arguments([1]))
    assert "object" in refusal(lambda: parse_arguments("3"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["city", "days", "unit", "x"]), json_values))
def test_no_arguments_whatever_raise(arguments: dict[str, Any]) -> None:
    made = as_tool(weather)
    context: Any = None

    async def run() -> Output:
        return await made.run(context, arguments)

    output = asyncio.run(run())
    fits = isinstance(arguments.get("city"), str) and "x" not in arguments
    assert output.error or fits


# ---------------------------------------------------------------------------- how they are run


def test_the_context_is_given_and_not_the_models_to_give(desk: Desk) -> None:
    def where(context: ToolContext, name: str) -> str:
        """Where."""
        return f"{name} {context.call.name} {context.session.id}"

    assert as_tool(where).spec.parameters["required"] == ["name"]
    assert call(desk, where, name="x").content == f"x where {desk.session.id}"
    assert call(desk, where, name="x", context={}).error


def test_sync_functions_run_beside_the_event_loop_and_async_ones_in_it(desk: Desk) -> None:
    def beside() -> str:
        """Beside."""
        return threading.current_thread().name

    async def within() -> str:
        """Within."""
        await asyncio.sleep(0)
        return threading.current_thread().name

    class Adding:
        def __call__(self, number: int) -> int:
            """Add one."""
            return number + 1

    assert call(desk, beside).content == "holdfast-tool"
    assert call(desk, within).content == threading.current_thread().name
    assert call(desk, Adding(), number=2).content == "3"
    assert as_tool(Adding()).spec.description == "Add one."
    half = functools.partial(weather, unit="F")
    assert call(desk, half, city="Rome").content == "Rome 3 F"


def test_a_function_that_hangs_does_not_hold_up_whoever_gives_it_up(desk: Desk) -> None:
    released = threading.Event()

    def hang() -> None:
        """Hang."""
        released.wait(600)

    async def given_up() -> None:
        async with asyncio.timeout(0.05):
            await desk.add([as_tool(hang)]).output("hang")

    with pytest.raises(TimeoutError):
        asyncio.run(given_up())  # It would wait for a thread of the loop's own pool.
    released.set()


_HANGS = """
import asyncio, threading
from holdfast.agent.tools.worker_thread import in_thread

async def main():
    async with asyncio.timeout(0.05):
        await in_thread(threading.Event().wait)

try:
    asyncio.run(main())
except TimeoutError:
    print("given up")
"""


def test_a_program_ends_though_a_function_hangs() -> None:
    command = [sys.executable, "-c", _HANGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "given up\n"


def test_what_a_thread_raises_arrives() -> None:
    def stop() -> None:
        raise StopIteration(3)

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(in_thread(stop))
    with pytest.raises(KeyError):
        asyncio.run(in_thread(fail))


def test_whatever_a_function_returns_is_an_output() -> None:
    assert as_output(None) == Output(NO_OUTPUT)
    assert as_output("x") == Output("x")
    assert as_output(Output("x", error=True)).error
    assert as_output({"a": [1, None]}) == Output('{"a":[1,null]}')
    assert as_output(Point(1)) == Output('{"x":1,"y":0}')
    assert as_output([Text("a"), File(data=b"x")]) == Output((Text("a"), File(data=b"x")))
    assert as_output(Text("a")) == Output((Text("a"),))
    assert as_output([]) == Output("[]")
    assert str(as_output(threading).content).startswith("<module")


def test_errors_are_told_without_a_traceback() -> None:
    assert error_output(ToolError("no such file")) == Output("no such file", error=True)
    assert error_output(KeyError("x")) == Output("KeyError: 'x'", error=True)
    assert error_output(ValueError()) == Output("ValueError", error=True)


# ------------------------------------------------------------------------------------- marking


def test_a_marked_function_stays_a_function(desk: Desk) -> None:
    @tool(name="forecast", description="Look ahead.", timeout=5, asks=True)
    def ahead(days: int) -> int:
        """Not told."""
        return days + 1

    @tool
    def plain() -> None:
        """Plain."""

    assert ahead(1) == 2
    made = as_tool(ahead)
    assert (made.name, made.spec.description, made.timeout) == ("forecast", "Look ahead.", 5)
    assert as_tool(plain).timeout == 120
    assert as_tool(plain).asks is None
    assert as_tool(made) is made


def test_what_is_asked_is_what_is_done(desk: Desk) -> None:
    """The question is given the arguments as the function will be."""
    seen: list[dict[str, Any]] = []

    def question(context: ToolContext, given: dict[str, Any]) -> str | None:
        seen.append(given)
        return None if given.get("dry") else f"delete {given['count']}"

    def delete(count: int, dry: bool = False) -> None:
        """Delete."""

    desk.add([make_tool(delete, asks=question)])
    assert desk.asks("delete", count="3") == "delete 3"
    assert desk.asks("delete", count=3, dry="true") is None
    assert seen == [{"count": 3}, {"count": 3, "dry": True}]
    assert desk.asks("delete", count="all") is None  # It will be refused without a question.
    desk.add([make_tool(delete, asks=True)])
    assert desk.asks("delete", count="3") == 'run delete with {"count":3}'


def test_a_tool_with_a_bad_name_is_refused() -> None:
    spec = ToolSpec("bad name", "", {})

    async def run(context: ToolContext, arguments: dict[str, Any]) -> Output:
        return Output("")

    with pytest.raises(Invalid):
        as_tool(Tool(spec=spec, run=run))
