"""Python functions as tools.

A tool's schema comes from the function's signature: each parameter becomes a property with its
annotated type. The first paragraph of the docstring describes the tool, the lines under `Args:` its
parameters. A parameter annotated with `ToolContext` is hidden from the model and receives the
context of the call.

Invalid arguments become an error result, not an exception: models read it and try again.
Unambiguous deviations are accepted ("3" for a number, null for an optional parameter).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast, overload

import msgspec

from holdfast import validation
from holdfast.agent.models.protocol import ToolSpec
from holdfast.agent.tools.parameters import Arguments, InvalidArguments, parameters_of
from holdfast.agent.tools.protocol import Ask, Output, Tool, ToolContext
from holdfast.agent.tools.worker_thread import in_thread
from holdfast.errors import BadMessage, Invalid
from holdfast.values import JSON, File, Raw, Text

F = TypeVar("F", bound=Callable[..., object])
# Receives the same converted arguments as the function, so that the question matches the action.
ApprovalQuestion: TypeAlias = Callable[[ToolContext, dict[str, Any]], "str | Ask | None"]

DEFAULT_TIMEOUT_S: Final = 120.0
NO_OUTPUT: Final = "(done; there is no output)"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OPTIONS_ATTRIBUTE: Final = "__holdfast_tool__"
_SECTION: Final = re.compile(r"(?:Args|Arguments|Parameters):")
_ARGUMENT: Final = re.compile(r"\*{0,2}(\w+)(?: ?\([^)]*\))?: *(.*)")


class ToolError(Exception):
    """A failure of a tool; its message is written for the model."""


class _ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@tool`."""

    name: str | None
    description: str | None
    timeout: float | None
    asks: bool | ApprovalQuestion


# ------------------------------------------------------------------------------- public functions


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    asks: bool | ApprovalQuestion = False,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    asks: bool | ApprovalQuestion = False,
) -> F | Callable[[F], F]:
    """Set the options of a function that is to be used as a tool; return the function itself.

    `asks`: the user must approve each call; a function returns the question, or `None` for none.
    """

    def mark(marked: F) -> F:
        options = _ToolOptions(name=name, description=description, timeout=timeout, asks=asks)
        _build_tool(marked, options)  # Raise here, at the definition, if it cannot be a tool.
        setattr(marked, _OPTIONS_ATTRIBUTE, options)
        return marked

    return mark if function is None else mark(function)


def as_tool(given: Tool | Callable[..., object]) -> Tool:
    """Return a tool made from a function; a `Tool` is returned unchanged."""
    if isinstance(given, Tool):
        _check_name(given.name)
        return given
    if not callable(given) or inspect.isclass(given):
        raise Invalid(f"a tool must be a function or a Tool, not {given!r}")
    options = getattr(given, _OPTIONS_ATTRIBUTE, None)
    if isinstance(options, _ToolOptions):
        return _build_tool(given, options)
    return make_tool(given)


def make_tool(
    function: Callable[..., object],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    asks: bool | ApprovalQuestion = False,
) -> Tool:
    """Return a tool made from a function that `@tool` cannot decorate, such as a method."""
    return _build_tool(
        function, _ToolOptions(name=name, description=description, timeout=timeout, asks=asks)
    )


def parse_arguments(arguments: JSON) -> dict[str, JSON]:
    """Return a call's arguments as an object; `ToolError` if they are not one."""
    if isinstance(arguments, str):
        arguments = _read_json(arguments) if arguments.strip() else None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object, not {_named(arguments)}.")
    return arguments


def as_output(value: object) -> Output:
    """Return a function's result as an output: text, parts, or any value as JSON."""
    if isinstance(value, Output):
        return value
    if value is None:
        return Output(NO_OUTPUT)
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


def error_output(error: BaseException) -> Output:
    """Return the error output for an exception that a tool raised."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception whose text fails is an error all the same
        message = ""
    if isinstance(error, ToolError) and message:
        return Output(message, error=True)
    kind = type(error).__name__
    return Output(f"{kind}: {message}" if message else kind, error=True)


# ------------------------------------------------------------------------------ building a tool


def _build_tool(function: Callable[..., object], options: _ToolOptions) -> Tool:
    name = _check_name(options.name or _name_of(function))
    parameters, contexts = parameters_of(function, name)
    first, about = _documented(function)
    takes = Arguments(name, parameters, about)
    spec = ToolSpec(name, options.description or first or f"The tool {name}.", takes.schema)
    run = _FunctionRunner(function, takes, contexts)
    asks = (
        None
        if options.asks is False
        else partial(_approval_question, takes, _question(options.asks, name))
    )
    return Tool(spec=spec, run=run, asks=asks, timeout=options.timeout)


class _FunctionRunner:
    """Runs a function with a call's arguments: awaited if it is async, else in a thread."""

    def __init__(
        self, function: Callable[..., object], takes: Arguments, contexts: tuple[str, ...]
    ) -> None:
        self._function = function
        self._takes = takes
        self._contexts = contexts
        self._is_async = _is_async(function)

    async def __call__(self, context: ToolContext, arguments: dict[str, JSON]) -> Output:
        """Run the function; invalid arguments give an error output."""
        try:
            given = self._takes.read(arguments)
        except InvalidArguments as error:
            return Output(str(error), error=True)
        given |= dict.fromkeys(self._contexts, context)
        if self._is_async:
            done = self._function(**given)
        else:
            done = await in_thread(partial(self._function, **given))
        if inspect.isawaitable(done):
            done = await cast("Awaitable[object]", done)
        return as_output(done)


def _question(asks: bool | ApprovalQuestion, name: str) -> ApprovalQuestion:  # noqa: FBT001 - as `tool` was given it
    if callable(asks):
        return asks
    return lambda _, given: f"run {name} with {as_output(given).content}"


def _approval_question(
    takes: Arguments, asks: ApprovalQuestion, context: ToolContext, arguments: dict[str, JSON]
) -> str | Ask | None:
    """Return the question for the user; `None` for invalid arguments: the call will fail."""
    try:
        given = takes.read(arguments)
    except InvalidArguments:
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
            f"{name!r} is not a valid tool name: it must have 1 to 64 letters, digits, _ or -. "
            "Set one with @tool(name=…)."
        )
    return name


# ------------------------------------------------------------------------------------- docstrings


def _documented(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a function's docstring, and each parameter's description."""
    lines = _docstring(function).splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or _SECTION.fullmatch(line.strip()):
            break
        first.append(line.strip())
    return " ".join(first), _described(lines)


def _described(lines: list[str]) -> dict[str, str]:
    start = next((n for n, line in enumerate(lines) if _SECTION.fullmatch(line.strip())), None)
    if start is None:
        return {}
    outer = _indent(lines[start])
    inner: int | None = None
    about: dict[str, str] = {}
    name: str | None = None
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        if _indent(line) <= outer:
            break
        inner = _indent(line) if inner is None else inner
        found = _ARGUMENT.fullmatch(line.strip()) if _indent(line) == inner else None
        if found is not None:
            name = found[1]
            about[name] = found[2]
        elif name is not None:
            about[name] = f"{about[name]} {line.strip()}".strip()
    return about


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _docstring(function: Callable[..., object]) -> str:
    inner = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(inner):
        return inspect.getdoc(type(inner).__call__) or inspect.getdoc(inner) or ""
    return inspect.getdoc(inner) or ""


# ------------------------------------------------------------------------------------------ JSON


def _read_json(text: str) -> JSON:
    try:
        value: JSON = json.loads(text, strict=False, parse_constant=_refuse)
        return validation.check_json(value, "arguments")
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
