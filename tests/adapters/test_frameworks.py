"""Each adapter does what its framework expects, with the framework itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.adapters.environment import interpreter_of, surroundings
from tools.frameworks import FRAMEWORKS, Framework

FOLDER: Final = Path(__file__).parent / "frameworks"


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_an_adapter_passes_in_its_framework(framework: Framework, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            str(interpreter_of(framework)),
            "-m",
            "pytest",
            "-c",
            str(FOLDER / "pytest.ini"),
            f"--basetemp={tmp_path / 'tests'}",
            str(FOLDER / framework.name),
        ],
        cwd=tmp_path,
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


def test_each_framework_has_tests() -> None:
    folders = {path.name for path in FOLDER.iterdir() if any(path.glob("test_*.py"))}
    assert folders == {framework.name for framework in FRAMEWORKS}
