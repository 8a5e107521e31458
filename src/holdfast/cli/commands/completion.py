"""`holdfast completion`: shell scripts that complete commands, options and sessions.

The scripts contain no command names: on Tab they pass the line to the hidden `holdfast __complete`
(see `shell_completion`), so they never get out of date. The first line of its output is `files`,
which makes the shell complete file names itself, or `words`, followed by one word per line.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from holdfast.cli.command import command
from holdfast.cli.output.json_output import print_document

# Bash splits words at characters such as ":" on its own terms, so it passes the line as it is.
_BASH: Final = r"""# bash completion for holdfast
_holdfast() {
    local IFS=$'\n' kind found
    COMPREPLY=()
    {
        read -r kind
        while read -r found; do COMPREPLY+=("$found"); done
    } < <("${1/#\~\//$HOME/}" __complete bash \
        "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null)
    if [[ $kind == files ]]; then
        compopt -o default 2>/dev/null
    fi
}
complete -F _holdfast holdfast
"""

_ZSH: Final = r"""#compdef holdfast
_holdfast() {
    local kind found about
    local -a values shown
    {
        read -r kind
        while IFS=$'\t' read -r found about; do
            values+=("$found")
            shown+=("$found${about:+  -- $about}")
        done
    } < <("${(Q)words[1]/#\~\//$HOME/}" __complete zsh \
        "${(@Q)words[2,CURRENT-1]}" "$QIPREFIX$PREFIX" 2>/dev/null </dev/null)
    if [[ $kind == files ]]; then
        _files
    else
        compadd -l -V holdfast -d shown -a values
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _holdfast "$@"
else
    compdef _holdfast holdfast
fi
"""

_FISH: Final = r"""# fish completion for holdfast
function __holdfast_complete
    set -l words (commandline -opc)
    set -l found ($words[1] __complete fish $words[2..-1] (commandline -ct) 2>/dev/null </dev/null)
    if test "$found[1]" = files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found[2..-1]
    end
end
complete -c holdfast -f -k -a '(__holdfast_complete)'
"""

_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@command(
    "holdfast completion bash >> ~/.bashrc",
    "holdfast completion zsh > ~/.zfunc/_holdfast   # a directory of your $fpath",
    "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
)
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
def completion(*, shell: str, store: str | None, as_json: bool) -> None:  # noqa: ARG001
    """Print a script for completion in your shell.

    Your shell reads it when it starts. Then the Tab key completes commands, options, files, and
    sessions by their key, title or id.
    """
    if as_json:
        print_document({"shell": shell, "script": _SCRIPTS[shell]})
    else:
        sys.stdout.write(_SCRIPTS[shell])
