"""A function's parameters as a JSON Schema, and validation of a model's arguments.

A struct type is made from the signature. It provides the schema and converts the arguments; invalid
ones raise `InvalidArguments`, whose text tells the model what to correct.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Union

import msgspec

from holdfast import validation
from holdfast.agent.tools.json_schema import schema_of
from holdfast.agent.tools.protocol import ToolContext
from holdfast.errors import BadMessage, Invalid
from holdfast.values import JSON

_WHERE: Final = re.compile(r" - at `\$\.?([^`]*)`$")


class InvalidArguments(ValueError):
    """The arguments of a call do not fit the tool's parameters."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that the model passes."""

    name: str
    kind: object
    default: object
    nullable: bool

    @property
    def required(self) -> bool:
        """True if it must be passed."""
        return self.default is inspect.Parameter.empty


def parameters_of(
    function: Callable[..., object], name: str
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Return the parameters that the model passes, and the names of those for the context."""
    hints = _hints(function, name)
    taken: list[Parameter] = []
    contexts: list[str] = []
    for parameter in _signature(function, name).parameters.values():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise Invalid(
                f"{name} cannot be a tool: {parameter} cannot be passed by name, as models do."
            )
        kind = hints.get(parameter.name, Any)
        kind = Any if kind is object else kind
        if kind is ToolContext:
            contexts.append(parameter.name)
        else:
            nullable = _fits(None, kind, f"{name}: {parameter.name}")
            taken.append(Parameter(parameter.name, kind, parameter.default, nullable))
    return tuple(taken), tuple(contexts)


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    inner = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise Invalid(
            f"{name} cannot be a tool: its annotations cannot be evaluated: {error}"
        ) from error


def _signature(function: Callable[..., object], name: str) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(f"{name} cannot be a tool: it is a generator, and a tool returns one value.")
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise Invalid(f"{name} cannot be a tool: its signature is not available.") from error


def _fits(value: object, kind: object, where: str) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    except TypeError as error:
        raise Invalid(f"{where}: the type {kind} is not supported for tool parameters") from error
    return True


class Arguments:
    """A tool's parameters: the schema, and the conversion of arguments."""

    def __init__(
        self, name: str, parameters: tuple[Parameter, ...], about: Mapping[str, str]
    ) -> None:
        self.name = name
        self._parameters = parameters
        self._struct = _struct_of(name, parameters)
        self.schema = _schema_with_docs(self._struct, parameters, about)

    def read(self, arguments: Mapping[str, JSON]) -> dict[str, object]:
        """Return the values to call a function with; `InvalidArguments` if they do not fit."""
        optional = {p.name for p in self._parameters if not (p.required or p.nullable)}
        given = {k: v for k, v in arguments.items() if v is not None or k not in optional}
        try:
            values = msgspec.convert(given, self._struct, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArguments(self._error_text(error)) from error
        found = {p.name: getattr(values, f"p{n}") for n, p in enumerate(self._parameters)}
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}

    def _error_text(self, error: Exception) -> str:
        problem = str(error)
        where = _WHERE.search(problem)
        if where is not None:
            what = problem[: where.start()]
            problem = f"{where[1]}: {what}" if where[1] else what
        takes = ", ".join(
            p.name if p.required else f"{p.name} (optional)" for p in self._parameters
        )
        return f"invalid arguments: {problem}. {self.name} takes: {takes or 'nothing'}."


def _struct_of(name: str, parameters: tuple[Parameter, ...]) -> type[msgspec.Struct]:
    """Return a struct type with a field for each parameter, under names that cannot clash."""
    fields: list[tuple[str, Any, Any]] = []
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        if parameter.required:
            rule = msgspec.field(name=parameter.name)
        else:
            kind = Union[kind, msgspec.UnsetType]  # noqa: UP007 - `|` does not take every type
            rule = msgspec.field(name=parameter.name, default=msgspec.UNSET)
        fields.append((f"p{number}", kind, rule))
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise Invalid(f"{name} cannot be a tool: {error}") from error


def _schema_with_docs(
    struct: type[msgspec.Struct], parameters: tuple[Parameter, ...], about: Mapping[str, str]
) -> dict[str, JSON]:
    try:
        schema = schema_of(struct)
    except TypeError as error:
        what = str(error).strip().rpartition("\n")[2]
        raise Invalid(f"{struct.__name__} cannot be a tool: {what}") from error
    properties = schema.setdefault("properties", {})
    if not isinstance(properties, dict):
        return schema
    for parameter in parameters:
        shown = properties.get(parameter.name)
        if not isinstance(shown, dict):
            continue
        if parameter.name in about:
            shown.setdefault("description", about[parameter.name])
        if not parameter.required and parameter.default is not None:
            _add_default(shown, parameter.default)
    return schema


def _add_default(shown: dict[str, JSON], default: object) -> None:
    try:
        plain = msgspec.to_builtins(default)
        shown.setdefault("default", validation.check_json(plain, "default"))
    except (TypeError, ValueError, BadMessage):
        return  # A default that JSON cannot represent is omitted from the schema.
