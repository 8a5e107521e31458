"""The environment of a framework: its interpreter, and the variables of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tools.environments import NotInstalled
from tools.frameworks import Framework

ROOT: Final = Path(__file__).parents[2]
_KEPT: Final = ("PATH", "LANG", "TMPDIR")


def interpreter_of(framework: Framework) -> Path:
    """Return the interpreter that has a framework; skip the test if no registry has its packages.

    One that cannot be installed for another reason fails.
    """
    try:
        return framework.interpreter()
    except NotInstalled as error:
        if not error.unavailable:
            raise
        pytest.skip(f"{framework.name}: {error}")


def surroundings(home: Path) -> dict[str, str]:
    """Return the variables of a process that imports this tree, and nothing of a user."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "HOME": str(home), "PYTHONPATH": path}
