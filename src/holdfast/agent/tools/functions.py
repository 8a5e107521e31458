"""Python functions as tools.

The signature says what a tool takes: each parameter becomes a property of the schema, with the type
it is annotated with, and the docstring says what it is for. Its first paragraph describes the tool,
the lines under `Args:` its parameters. A parameter annotated with `ToolContext` is not the model's:
it is given the context of the call.

Arguments that do not fit are answered, not raised: models read the answer and try again. What is
certain is taken for what it means ("3" for a number, null for what may be left out).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast, overload

import msgspec

from holdfast import checks
from holdfast.agent.models.base import ToolSpec
from holdfast.agent.tools.base import Output, Tool, ToolContext
from holdfast.agent.tools.docstrings import documented
from holdfast.agent.tools.parameters import Arguments, Misfit, parameters_of
from holdfast.agent.tools.threads import in_thread
from holdfast.errors import BadMessage, Invalid
from holdfast.records import JSON, File, Raw, Text

F = TypeVar("F", bound=Callable[..., object])
# Given the arguments as the function is: what is asked for is what is done.
Asks: TypeAlias = Callable[[ToolContext, dict[str, Any]], "str | None"]

TIMEOUT: Final = 120.0
NOTHING: Final = "(done; there is no output)"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MARK: Final = "__holdfast_tool__"


class ToolError(Exception):
    """What a tool could not do, in words for the model."""


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `@tool` says of a function."""

    name: str | None
    description: str | None
    timeout: float | None
    asks: bool | Asks


# ------------------------------------------------------------------------------------ the surface


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = TIMEOUT,
    asks: bool | Asks = False,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = TIMEOUT,
    asks: bool | Asks = False,
) -> F | Callable[[F], F]:
    """Say more of a function that is to be a tool; it stays the function it is.

    `asks`: the user is asked before it runs; a function says what is asked, or `None` for nothing.
    """

    def mark(marked: F) -> F:
        wish = _Wish(name=name, description=description, timeout=timeout, asks=asks)
        _made(marked, wish)  # What cannot be a tool is told here, where it is written.
        setattr(marked, _MARK, wish)
        return marked

    return mark if function is None else mark(function)


def as_tool(given: Tool | Callable[..., object]) -> Tool:
    """Make a tool of a function; a tool is given back."""
    if isinstance(given, Tool):
        _check_name(given.name)
        return given
    if not callable(given) or inspect.isclass(given):
        raise Invalid(f"a tool is a function or a Tool, not {given!r}")
    wish = getattr(given, _MARK, None)
    if isinstance(wish, _Wish):
        return _made(given, wish)
    return make_tool(given)


def make_tool(
    function: Callable[..., object],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = TIMEOUT,
    asks: bool | Asks = False,
) -> Tool:
    """Make a tool of a function that cannot be marked with `@tool`, such as a method."""
    return _made(function, _Wish(name=name, description=description, timeout=timeout, asks=asks))


def given_arguments(arguments: JSON) -> dict[str, JSON]:
    """Return a call's arguments as an object; what is none raises `ToolError` for the model."""
    if isinstance(arguments, str):
        arguments = _read_json(arguments) if arguments.strip() else None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object, not {_named(arguments)}.")
    return arguments


def as_output(value: object) -> Output:
    """Make an output of whatever a function returned: text, parts, or anything JSON can hold."""
    if isinstance(value, Output):
        return value
    if value is None:
        return Output(NOTHING)
    if isinstance(value, str):
        return Output(value)
    if isinstance(value, Text | File | Raw):
        return Output((value,))
    if isinstance(value, tuple | list) and value and _are_parts(value):
        return Output(tuple(value))
    try:
        return Output(msgspec.json.encode(value).decode())
    except (TypeError, ValueError, OverflowError, RecursionError):
        return Output(str(value))


def failure(error: BaseException) -> Output:
    """Tell the model of an error that a tool raised."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be told is one all the same
        said = ""
    if isinstance(error, ToolError) and said:
        return Output(said, error=True)
    kind = type(error).__name__
    return Output(f"{kind}: {said}" if said else kind, error=True)


# ------------------------------------------------------------------------------ making one


def _made(function: Callable[..., object], wish: _Wish) -> Tool:
    name = _check_name(wish.name or _name_of(function))
    parameters, contexts = parameters_of(function, name)
    first, about = documented(function)
    takes = Arguments(name, parameters, about)
    spec = ToolSpec(name, wish.description or first or f"The tool {name}.", takes.schema)
    run = _Running(function, takes, contexts)
    asks = None if wish.asks is False else partial(_asked, takes, _question(wish.asks, name))
    return Tool(spec=spec, run=run, asks=asks, timeout=wish.timeout)


class _Running:
    """Runs a function with the arguments of a call: an async one here, another in a thread."""

    def __init__(
        self, function: Callable[..., object], takes: Arguments, contexts: tuple[str, ...]
    ) -> None:
        self._function = function
        self._takes = takes
        self._contexts = contexts
        self._is_async = _is_async(function)

    async def __call__(self, context: ToolContext, arguments: dict[str, JSON]) -> Output:
        """Check the arguments and run; those that do not fit are an error for the model."""
        try:
            given = self._takes.read(arguments)
        except Misfit as error:
            return Output(str(error), error=True)
        given |= dict.fromkeys(self._contexts, context)
        if self._is_async:
            done = self._function(**given)
        else:
            done = await in_thread(partial(self._function, **given))
        if inspect.isawaitable(done):
            done = await cast("Awaitable[object]", done)
        return as_output(done)


def _question(asks: bool | Asks, name: str) -> Asks:  # noqa: FBT001 - as `tool` was given it
    if callable(asks):
        return asks
    return lambda _, given: f"run {name} with {as_output(given).content}"


def _asked(
    takes: Arguments, asks: Asks, context: ToolContext, arguments: dict[str, JSON]
) -> str | None:
    """Return what the user is asked; nothing if the call will be refused anyway."""
    try:
        given = takes.read(arguments)
    except Misfit:
        return None
    return asks(context, given)


def _is_async(function: Callable[..., object]) -> bool:
    inner = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - an object may be called as a function is
    )


def _name_of(function: Callable[..., object]) -> str:
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a tool: models take 1 to 64 letters, digits, _ and -. "
            "Name it with @tool(name=…)."
        )
    return name


# ------------------------------------------------------------------------------------------ JSON


def _read_json(text: str) -> JSON:
    try:
        value: JSON = json.loads(text, strict=False, parse_constant=_refuse)
        return checks.check_json(value, "arguments")
    except (ValueError, RecursionError, BadMessage) as error:
        raise ToolError(f"the arguments are not JSON: {error}.") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _named(value: JSON) -> str:
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else f"{value!r}"


def _are_parts(values: tuple[object, ...] | list[object]) -> bool:
    return all(isinstance(value, Text | File | Raw) for value in values)
