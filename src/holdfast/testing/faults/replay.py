"""Rebuild one crash state from a saved trace, and optionally check it again.

python -m holdfast.testing.faults.replay RUN.trace --state 57:1f --to DIR [--check FILE.py:NAME]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from holdfast.testing.faults.crash_states import CrashState, state_named
from holdfast.testing.faults.trace import Trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the state to a directory, print a summary, run the check; return the exit code."""
    options = _parser().parse_args(arguments)
    state = state_named(Trace.load(options.trace), options.state)
    options.to.mkdir(parents=True, exist_ok=True)
    if any(options.to.iterdir()):
        # Opening a state recovers it, so a directory that was opened holds another state.
        sys.stderr.write(f"{options.to} is not empty; pass another directory\n")
        return 2
    state.write_to(options.to)
    sys.stdout.write(_summary(state, options.to))
    if options.check:
        _load_check(options.check)(options.to, state)
        sys.stdout.write("check passed\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.faults.replay")
    parser.add_argument("trace", type=Path, help="the saved trace")
    parser.add_argument("--state", required=True, help="the state's name, POINT:PIECES")
    parser.add_argument("--to", type=Path, required=True, help="an empty directory for its files")
    parser.add_argument("--check", help="FILE.py:NAME of a function (directory, state)")
    return parser


def _summary(state: CrashState, directory: Path) -> str:
    lines = [f"state {state.describe()} ({state.model}{', torn' if state.torn else ''})"]
    lines += [f"  {directory / name}: {len(data)} bytes" for name, data in state.files.items()]
    lines += [f"  begun {len(state.begun)}: {', '.join(state.begun[-3:])}"]
    lines += [f"  acked {len(state.acked)}: {', '.join(state.acked[-3:])}"]
    return "\n".join(lines) + "\n"


def _load_check(address: str) -> Callable[[Path, CrashState], None]:
    file, _, name = address.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python file: {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Callable[[Path, CrashState], None]", getattr(module, name))


if __name__ == "__main__":
    sys.exit(main())
