"""Load the configuration: merge files, environment and options.

The order of precedence, lowest first: the defaults, the user's file, the workspace's file, the
environment, the options of a command. Each value has its origin. A list, or the prices of a model,
replaces the earlier one completely.

A workspace that the user does not trust may set few keys, and limits only to lower values. A higher
limit and a model of another provider are ignored; a key that it may not set at all is a problem.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.config import file, paths, schema
from holdfast.config.file import ConfigFile, ConfigProblem
from holdfast.config.schema import Settings
from holdfast.errors import BadConfig

OriginKind: TypeAlias = Literal["default", "user", "workspace", "environment", "option"]
VARIABLES: Final = {
    "HOLDFAST_MODEL": "model.name",
    "HOLDFAST_URL": "session.store",
    "HOLDFAST_SCOPE": "session.scope",
}
_Layer: TypeAlias = dict[str, tuple[object, "ValueOrigin"]]
_LOCAL: Final = "local"
_LOCAL_PREFIX: Final = f"{_LOCAL}:"
_PROVIDERS: Final = frozenset({"anthropic", "openai", _LOCAL})
_WEIGHTS_SUFFIX: Final = ".gguf"
# A model that is certainly not a file: a provider and a name, or a plain name.
_NOT_A_FILE: Final = re.compile(
    r"(openai|anthropic):\S+|local|(?!local:)[A-Za-z0-9][\w.:@-]*(?<!\.gguf)", re.ASCII
)
_STORE_KEYS: Final = (None, "session", "session.store")
_WORLD_WRITABLE: Final = 0o002


class ValueOrigin(msgspec.Struct, frozen=True):
    """Where a value came from: the kind of source, and its name or path."""

    kind: OriginKind
    where: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """Return the path and line, the name, or the kind."""
        if self.where is None:
            return self.kind
        return self.where if self.line is None else f"{self.where}, line {self.line}"


DEFAULT: Final = ValueOrigin("default")


class Option(msgspec.Struct, frozen=True):
    """A value from a command-line option; `name` is the option as the user writes it."""

    name: str
    value: object


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The values in effect, the origin of each, and the problems, whose values are ignored.

    `ignored` are a workspace's values that the user's own rule out; they are no problem.
    `base_url_model` is the model in the layer that set `base_url` or `api_key_env`. A model of
    another provider, named in a later layer, must not be requested at that URL or with that key.
    """

    settings: Settings
    origins: dict[str, ValueOrigin]
    user: Path | None
    workspace: Path | None
    base_url_model: str | None = None
    problems: tuple[ConfigProblem, ...] = ()
    ignored: tuple[ConfigProblem, ...] = ()

    def origin(self, key: str) -> ValueOrigin:
        """Return the origin of a value."""
        return self.origins.get(key, DEFAULT)


def load(
    environ: Mapping[str, str],
    directory: Path | None,
    *,
    home: Path | None = None,
    options: Mapping[str, Option] | None = None,
) -> Config:
    """Return the configuration; raise `BadConfig` with all problems if there are any."""
    config = load_with_problems(environ, directory, home=home, options=options)
    if config.problems:
        raise BadConfig("; ".join(map(str, config.problems)))
    return config


def configured_store(
    environ: Mapping[str, str], directory: Path | None, *, home: Path | None = None
) -> str | None:
    """Return the configured store; raise `BadConfig` if the user's setting of it is invalid.

    Other problems are ignored: commands that need only the store must not fail because of them.
    """
    config = load_with_problems(environ, directory, home=home)
    own = [p for p in config.problems if p.where == str(config.user) and p.key in _STORE_KEYS]
    if own:
        raise BadConfig("; ".join(map(str, own)))
    return config.settings.session.store


def load_with_problems(
    environ: Mapping[str, str],
    directory: Path | None,
    *,
    home: Path | None = None,
    options: Mapping[str, Option] | None = None,
) -> Config:
    """Return the configuration from all valid values, and the problems."""
    user = paths.user_file(environ)
    own = _read_user_file(user, required=bool(environ.get(paths.PATH_VARIABLE)))
    workspace = paths.workspace_file(directory, home)
    if workspace is not None and user is not None and _is_same_file(workspace, user):
        workspace = None
    of_workspace, ignored = _read_workspace_file(workspace, own)
    given, problems = _validate_layer({**_environment(environ), **_options(options or {})})
    layers = [_layer("user", own), _layer("workspace", of_workspace), given]
    values, sources = _merged(layers)
    return Config(
        settings=_settings(values),
        origins=sources,
        user=user,
        workspace=workspace,
        base_url_model=_base_url_model(layers),
        problems=own.problems + of_workspace.problems + problems,
        ignored=ignored,
    )


# ------------------------------------------------------------------------------------------ files


def _read_user_file(path: Path | None, *, required: bool) -> ConfigFile:
    if path is None:
        return ConfigFile(path=Path(os.devnull))
    if not required and not os.path.lexists(path):
        return ConfigFile(path=path)
    found = file.read(path)
    if found.values and path.stat().st_mode & _WORLD_WRITABLE:
        what = "the file is ignored because every user may write to it; run chmod o-w on it"
        return ConfigFile(
            path=path, problems=(*found.problems, ConfigProblem(where=str(path), what=what))
        )
    return found


def _read_workspace_file(
    path: Path | None, own: ConfigFile
) -> tuple[ConfigFile, tuple[ConfigProblem, ...]]:
    """Read the workspace's file; return what it may set, with its problems, and what is ignored."""
    if path is None:
        return ConfigFile(path=Path(os.devnull)), ()
    found = file.read(path)
    trusted = _is_trusted(path.parent, own)
    refused = {key: why for key in found.values if (why := _refusal(key, found, trusted=trusted))}
    ignored = {
        key: why
        for key, value in found.values.items()
        if not trusted and key not in refused and (why := _excess(key, value, own))
    }
    left = found.values.keys() - refused.keys() - ignored.keys()
    usable = msgspec.structs.replace(
        found,
        values={key: value for key, value in found.values.items() if key in left},
        problems=found.problems + _problems(found, refused),
    )
    return usable, _problems(found, ignored)


def _problems(found: ConfigFile, reasons: Mapping[str, str]) -> tuple[ConfigProblem, ...]:
    return tuple(
        ConfigProblem(where=str(found.path), key=key, line=found.lines.get(key), what=why)
        for key, why in reasons.items()
    )


def _refusal(key: str, found: ConfigFile, *, trusted: bool) -> str | None:
    """Return why a workspace may not set a key; `None` if it may."""
    if key in schema.USER_ONLY:
        return f"{key} can only be set in your own configuration file"
    if trusted:
        return None
    by_name = key != "model.name" or is_not_a_file(str(found.values[key]))
    if key in schema.WORKSPACE_RIGHTS and by_name:
        return None
    what = key if by_name else "a model that may be a file"
    return (
        f"a workspace may not set {what} unless you trust it: add "
        f"{str(found.path.parent)!r} to `trusted` in your own configuration file"
    )


def _excess(key: str, value: object, own: ConfigFile) -> str | None:
    """Return why a value of the workspace does not count beside the user's; `None` if it does."""
    if key == "model.name":
        ours = own.values.get(key)
        chosen = provider_of(str(value))
        if chosen is None or ours is None or chosen != provider_of(str(ours)):
            return (
                "model.name is ignored: a workspace may only choose another model, as "
                "PROVIDER:NAME, of the provider that your own configuration file names"
            )
        return None
    if schema.WORKSPACE_RIGHTS[key] == "set" or _is_lower(key, value, own):
        return None
    return f"{key} is ignored: a workspace may only lower what your own configuration file sets"


def _is_lower(key: str, value: object, own: ConfigFile) -> bool:
    """True if a limit is no higher than the user's."""
    ours = own.values.get(key, schema.all_keys()[key].default)
    if ours is None:
        return key in schema.WITHIN_MODEL
    assert isinstance(value, int | float)  # noqa: S101 - the schema says so
    assert isinstance(ours, int | float)  # noqa: S101 - as above
    if key in schema.ZERO_IS_UNLIMITED:
        value, ours = value or math.inf, ours or math.inf
    return value <= ours


def provider_of(model: str) -> str | None:
    """Return the provider that a model is written with; `None` if it is a plain name."""
    if _is_a_file(model):
        return _LOCAL
    provider = model.strip().partition(":")[0]
    return provider if provider in _PROVIDERS else None


def is_not_a_file(model: str) -> bool:
    """True if a model is certainly not a file, however its name is resolved."""
    return _NOT_A_FILE.fullmatch(model) is not None


def _is_trusted(directory: Path, own: ConfigFile) -> bool:
    """True if the user trusts exactly this directory; trust does not extend to those below."""
    named = own.values.get("trusted", ())
    assert isinstance(named, tuple)  # noqa: S101 - the schema says so
    return directory.resolve() in {Path(one).expanduser().resolve() for one in named}


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


# ---------------------------------------------------------------------------------------- merging


def _layer(kind: OriginKind, found: ConfigFile) -> _Layer:
    where = str(found.path)
    return {
        key: (
            _resolve_path(key, value, found.path.parent),
            ValueOrigin(kind, where, found.lines.get(key)),
        )
        for key, value in found.values.items()
    }


def _resolve_path(key: str, value: object, directory: Path) -> object:
    """Return the value; a relative path is resolved against the directory of its file."""
    if key == "session.store" and isinstance(value, str):
        return value if ":" in value else _path(value, directory)
    if key == "model.name" and isinstance(value, str) and _is_a_file(value):
        return _LOCAL_PREFIX + _path(value.removeprefix(_LOCAL_PREFIX), directory)
    return value


def _is_a_file(model: str) -> bool:
    hosted = model.startswith(("openai:", "anthropic:"))
    return model.startswith(_LOCAL_PREFIX) or (model.endswith(_WEIGHTS_SUFFIX) and not hosted)


def _path(text: str, directory: Path) -> str:
    return str(directory / Path(text).expanduser())


def _environment(environ: Mapping[str, str]) -> _Layer:
    return {
        key: (environ[name], ValueOrigin("environment", f"${name}"))
        for name, key in VARIABLES.items()
        if environ.get(name)
    }


def _options(options: Mapping[str, Option]) -> _Layer:
    return {key: (one.value, ValueOrigin("option", one.name)) for key, one in options.items()}


def _validate_layer(layer: _Layer) -> tuple[_Layer, tuple[ConfigProblem, ...]]:
    good: _Layer = {}
    problems = []
    for key, (value, source) in layer.items():
        try:
            good[key] = (file.convert(key, value), source)
        except ValueError as error:
            problems.append(ConfigProblem(where=str(source), key=key, what=str(error)))
    return good, tuple(problems)


def _merged(layers: list[_Layer]) -> tuple[dict[str, object], dict[str, ValueOrigin]]:
    values: dict[str, object] = {}
    sources: dict[str, ValueOrigin] = {}
    for layer in layers:
        for key, (value, source) in layer.items():
            if key == "prices" and isinstance(value, dict):
                value = {**values.get(key, {}), **value}  # type: ignore[dict-item]  # noqa: PLW2901
            values[key] = value
            sources[key] = source
    return values, sources


def _base_url_model(layers: list[_Layer]) -> str | None:
    named = None
    for layer in layers:
        if layer.keys() & {"model.base_url", "model.api_key_env"}:
            value, _ = layer.get("model.name", (None, DEFAULT))
            named = value if isinstance(value, str) else None
    return named


def _settings(values: Mapping[str, object]) -> Settings:
    document: dict[str, dict[str, object]] = {}
    whole = {}
    for key, value in values.items():
        table, dot, name = key.partition(".")
        if dot:
            document.setdefault(table, {})[name] = value
        else:
            whole[key] = value
    return msgspec.convert({**document, **whole}, Settings, from_attributes=True)


def settings_by_key(settings: Settings) -> Iterator[tuple[str, object]]:
    """Return every key and its value."""
    for key in schema.all_keys():
        value: object = settings
        for name in key.split("."):
            value = getattr(value, name)
        yield key, value
