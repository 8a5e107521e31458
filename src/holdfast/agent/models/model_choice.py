"""Model resolution: which model is used, and what it requires.

A model is written as its provider and its name there: `openai:NAME` (also for servers with a
compatible API), `anthropic:NAME`, `local:PATH`, or `local` for the default one. The name alone is
enough where it identifies the provider: `gpt-…`, `claude-…`, a path that ends in `.gguf`.

Without a name, the provider with an API key in the environment is used, else the local model.
Nothing here calls a provider, or imports packages that are not used.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from holdfast.agent.models import weights
from holdfast.agent.models.protocol import Model, ToolSupport
from holdfast.errors import Invalid, ModelMissing, install_command

ModelRunner: TypeAlias = Literal["openai", "anthropic", "local"]

# The models used when a key is set and no model is named.
DEFAULTS: Final[dict[ModelRunner, str]] = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-terra",
}
_KEY_VARIABLES: Final[dict[ModelRunner, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
}
_URL_VARIABLES: Final[dict[ModelRunner, str]] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
}
_PACKAGES: Final[dict[ModelRunner, str]] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "local": "xllamacpp",
}
_NAME_PREFIXES: Final[tuple[tuple[re.Pattern[str], ModelRunner], ...]] = (
    (re.compile(r"(gpt-|chatgpt-|codex-|o\d)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
_DOWNLOAD_HINT: Final = "`holdfast models get smollm2` downloads them"


class ModelChoice(msgspec.Struct, frozen=True):
    """The model that was chosen, and why."""

    spec: str
    why: str


class ModelSpec(msgspec.Struct, frozen=True):
    """A model's provider and its name there: empty for the default one."""

    runner: ModelRunner
    name: str

    def __str__(self) -> str:
        """Return the text that `parse_spec` reads."""
        return f"{self.runner}:{self.name}" if self.name else self.runner


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for building models. `environ` has the API keys, `api_key_env` names another one.

    `base_url` and `api_key_env` apply to the provider `owner` only, so that no key is sent to
    another one. Without an owner, a base URL and the key with it are for an OpenAI-compatible API.
    """

    environ: Mapping[str, str]
    base_url: str | None = None
    api_key_env: str | None = None
    owner: ModelRunner | None = None
    context: int | None = None
    max_output: int | None = None
    tools: ToolSupport | None = None


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is available, or would be with what `needs` lists."""

    spec: str
    about: str
    needs: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True if nothing is missing."""
        return not self.needs


# ------------------------------------------------------------------------------------- resolution


def choose(
    settings: ModelSettings, named: str | None = None, why: str = "it was requested"
) -> ModelChoice:
    """Choose a model: the named one, else one from the environment, else the local one."""
    environ = settings.environ
    if named:
        return ModelChoice(str(parse_spec(named, elsewhere=_has_other_server(settings))), why)
    if variable := environ.get("HOLDFAST_MODEL"):
        spec = parse_spec(variable, elsewhere=_has_other_server(settings))
        return ModelChoice(str(spec), "HOLDFAST_MODEL says so")
    for runner, key in _KEY_VARIABLES.items():
        if environ.get(key):
            return ModelChoice(str(_default(runner, settings)), f"{key} is set")
    if environ.get(_URL_VARIABLES["openai"]):
        return ModelChoice("openai", f"{_URL_VARIABLES['openai']} is set")
    return ModelChoice("local", "no model is named, and no key is set")


def _default(runner: ModelRunner, settings: ModelSettings) -> ModelSpec:
    """Return a provider's default model; without a name if another server is configured."""
    return parse_spec(runner, elsewhere=_has_other_server(settings))


def _has_other_server(settings: ModelSettings) -> bool:
    """True if OpenAI requests go to another server than OpenAI's."""
    return _url("openai", settings) is not None


def parse_spec(text: str, *, elsewhere: bool = False) -> ModelSpec:
    """Parse a model's name. `elsewhere`: an unknown name may belong to another server."""
    text = text.strip()
    runner, colon, name = text.partition(":")
    if runner in _PACKAGES:
        if colon and not name:
            raise Invalid(f"{text!r} lacks a model name: use {runner}:NAME, or {runner} alone")
        others = elsewhere and runner == "openai"
        return ModelSpec(runner, name or ("" if others else DEFAULTS.get(runner, "")))
    if _is_path(text):
        return ModelSpec("local", text)
    folded = text.lower()
    if folded in weights.KNOWN or folded == Path(weights.SMOLLM2.file).stem.lower():
        return ModelSpec("local", "")
    for prefix, owner in _NAME_PREFIXES:
        if prefix.match(folded):
            return ModelSpec(owner, text)
    if elsewhere and text:
        return ModelSpec("openai", text)
    raise Invalid(
        f"model {text!r}: unknown provider; use openai:{text or 'NAME'}, "
        f"anthropic:{text or 'NAME'} or local:PATH"
    )


def _is_path(text: str) -> bool:
    return text.endswith(".gguf") or text.startswith((os.sep, f".{os.sep}", "~"))


# -------------------------------------------------------------------------------------- building


def build(choice: ModelChoice, settings: ModelSettings) -> Model:
    """Build the chosen model; `ModelMissing` lists what it requires."""
    spec = parse_spec(choice.spec, elsewhere=_has_other_server(settings))
    missing = _missing(spec, settings)
    if missing:
        raise ModelMissing(f"{spec} cannot be used here: {'; '.join(missing)}")
    match spec.runner:
        case "openai":
            return _openai(spec, settings)
        case "anthropic":
            return _anthropic(spec, settings)
        case "local":
            return _local(spec, settings)


def _openai(spec: ModelSpec, settings: ModelSettings) -> Model:
    from holdfast.agent.models.openai_model import OpenAIModel  # noqa: PLC0415 - an extra

    return OpenAIModel(
        spec.name,
        base_url=_url("openai", settings),
        # A self-hosted server may need no key, but the client always sends one.
        api_key=_key("openai", settings) or "none",
        context=settings.context,
        max_output=settings.max_output,
        tools=settings.tools,
    )


def _anthropic(spec: ModelSpec, settings: ModelSettings) -> Model:
    from holdfast.agent.models.anthropic_model import AnthropicModel  # noqa: PLC0415 - an extra

    return AnthropicModel(
        spec.name,
        base_url=_url("anthropic", settings),
        api_key=_key("anthropic", settings),
        context=settings.context,
        max_output=settings.max_output,
        tools=settings.tools or "native",
    )


def _local(spec: ModelSpec, settings: ModelSettings) -> Model:
    from holdfast.agent.models.local_model import LocalModel  # noqa: PLC0415 - asyncio and an extra

    path = Path(spec.name).expanduser() if spec.name else weights.find()
    if path is None:  # The file was removed since the check.
        raise ModelMissing(f"the weights of the local model are not here: {_DOWNLOAD_HINT}")
    return LocalModel(path, context=settings.context, max_output=settings.max_output)


def _missing(spec: ModelSpec, settings: ModelSettings) -> list[str]:
    """Return what is missing, each as an instruction."""
    missing = []
    if importlib.util.find_spec(_PACKAGES[spec.runner]) is None:
        missing.append(f"run {install_command(spec.runner)}")
    if spec.runner == "local":
        return [*missing, *_missing_file(spec)]
    if not _key(spec.runner, settings) and not _needs_no_key(spec.runner, settings):
        missing.append(f"set {_key_name(spec.runner, settings)}")
    if not spec.name:
        missing.append("say which of that server's models: openai:NAME")
    return missing


def _missing_file(spec: ModelSpec) -> list[str]:
    if not spec.name:
        return [] if weights.find() else [f"its weights are not here, {_DOWNLOAD_HINT}"]
    path = Path(spec.name).expanduser()
    return [] if path.is_file() else [f"there is no file {path}"]


def _needs_no_key(runner: ModelRunner, settings: ModelSettings) -> bool:
    return runner == "openai" and _has_other_server(settings)


def _key_name(runner: ModelRunner, settings: ModelSettings) -> str:
    own = settings.api_key_env if _applies_to(runner, settings) else None
    return own or _KEY_VARIABLES[runner]


def _key(runner: ModelRunner, settings: ModelSettings) -> str | None:
    return settings.environ.get(_key_name(runner, settings)) or None


def _url(runner: ModelRunner, settings: ModelSettings) -> str | None:
    own = settings.base_url if _applies_to(runner, settings) else None
    return own or settings.environ.get(_URL_VARIABLES[runner]) or None


def _applies_to(runner: ModelRunner, settings: ModelSettings) -> bool:
    """True if the base URL and the key of the settings are for this provider."""
    if settings.owner is not None:
        return settings.owner == runner
    return runner == "openai" or settings.base_url is None


# --------------------------------------------------------------------------------------- listing


def list_models(settings: ModelSettings, also: str | None = None) -> list[ModelStatus]:
    """Return the models known here, each with what it lacks; `also` is listed in any case."""
    default = weights.find()
    own = [path for path in sorted(weights.default_directory().glob("*.gguf")) if path != default]
    specs = [ModelSpec("local", ""), *(ModelSpec("local", str(path)) for path in own)]
    specs += [_default("anthropic", settings), _default("openai", settings)]
    named = [] if also is None else [parse_spec(also, elsewhere=_has_other_server(settings))]
    specs = [*(spec for spec in named if spec not in specs), *specs]
    return [
        ModelStatus(spec=str(s), about=_about(s, settings), needs=tuple(_missing(s, settings)))
        for s in specs
    ]


def _about(spec: ModelSpec, settings: ModelSettings) -> str:
    if spec.runner == "local":
        return "no key, no network" if spec.name else "SmolLM2-135M; no key, no network"
    url = _url(spec.runner, settings)
    return "or another of its models" if url is None else f"whatever {_host(url)} has"


def _host(url: str) -> str:
    """Return the host and port of a URL, without credentials."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or "it"
