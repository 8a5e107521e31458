"""The command `holdfast`: the library's operations, by the same names, from a shell.

Each subcommand is a module of its own, imported when it is called; rich is imported only when the
output is a terminal. Human-readable output goes through `screen`, which escapes every character
that could move the cursor or hide text; `--json` output goes through `json_output`. Commands that
only read open the store read-only and create nothing.

Exit codes, the same for all of them:

* 0: done
* 1: the command found a problem (`doctor`, `prove`, `export`, `import`, `config --check`), a model
  failed (`run`), or the user declined (`purge`)
* 2: usage error: unknown or conflicting arguments
* 3: no such session, message or store, or the name matches several
* 4: conflict: the session is busy, or the id or key is taken
* 5: the store, or the disk or server that holds it, failed
* 6: no model can be used here, or a package of the extra `cli` is not installed
* 129: hung up (SIGHUP); 130: interrupted by Ctrl-C; 141: broken pipe; 143: terminated by SIGTERM
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

# Checked at the start: other programs install some of them, and each command imports its own.
_PACKAGES: Final = ("click", "markdown_it", "prompt_toolkit", "rich", "stamina")


def main() -> None:
    """Run the command and exit with its code."""
    # Scripts use --version to probe for the program; answering it does not need the parser.
    if sys.argv[1:] == ["--version"]:
        from holdfast import __version__

        sys.stdout.write(f"holdfast {__version__}\n")
        return
    missing = next((package for package in _PACKAGES if find_spec(package) is None), None)
    if missing is not None:
        sys.exit(_not_installed(missing))
    from holdfast.cli.program import run

    sys.exit(run(sys.argv[1:]))


def _not_installed(package: str) -> int:
    """Print what to install; return the exit code."""
    from holdfast.cli.errors import NOT_INSTALLED, print_error
    from holdfast.errors import install_command

    print_error(f"the command needs the package {package}: run {install_command('cli')}")
    return NOT_INSTALLED
