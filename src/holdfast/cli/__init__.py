"""The command `holdfast`: the library's verbs, by the same names, from a shell.

Each subcommand is a module of its own, imported when it is called; the packages that draw are
imported when there is a terminal to draw on. What people read goes through `screen`, which makes
every character visible that could move a cursor or hide text; what programs read (`--json`) goes
through `machine`. Reading commands open the store for reading only and create nothing.

Exit codes, the same for all of them:

* 0: done
* 1: the command found a problem (`doctor`, `prove`, `export`, `import`, `config --check`), a model
  failed (`run`), or it was told no (`purge`)
* 2: it was called in a way that makes no sense
* 3: there is no such session, message or store, or several go by that name
* 4: somebody else was there: the session is busy, the id or key is taken
* 5: the store, or the place it lies in, gives trouble
* 6: no model can be used here
* 130: interrupted by Ctrl-C; 129: hung up; 143: told to end; 141: nobody reads the output any more
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command and exit with its code."""
    # Scripts ask for the version to see whether a program is there: that needs no parser.
    if sys.argv[1:] == ["--version"]:
        from holdfast import __version__

        sys.stdout.write(f"holdfast {__version__}\n")
        return
    from holdfast.cli.program import run

    sys.exit(run(sys.argv[1:]))
