"""Each adapter does what its framework expects, with the framework itself.

A framework that no registry has is skipped; one that cannot be installed for another reason fails.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tools.environments import NotInstalled
from tools.frameworks import FRAMEWORKS, Framework

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent / "frameworks"


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_an_adapter_passes_in_its_framework(framework: Framework, tmp_path: Path) -> None:
    try:
        python = framework.interpreter()
    except NotInstalled as error:
        if not error.unavailable:
            raise
        pytest.skip(f"{framework.name}: {error}")
    run = subprocess.run(
        [
            str(python),
            "-m",
            "pytest",
            "-c",
            str(FOLDER / "pytest.ini"),
            f"--basetemp={tmp_path / 'tests'}",
            str(FOLDER / framework.name),
        ],
        cwd=tmp_path,
        env={
            **{name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ},
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


def test_each_framework_has_tests_and_an_extra() -> None:
    folders = {path.name for path in FOLDER.iterdir() if any(path.glob("test_*.py"))}
    assert folders == {framework.name for framework in FRAMEWORKS}
