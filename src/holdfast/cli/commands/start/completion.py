"""`holdfast completion`, and the candidates that its scripts ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Annotated

from holdfast.cli import framework as ui
from holdfast.errors import HoldfastError, UsageError
from holdfast.storage.base import RecordQuery, RunQuery

_MOST = 200
_SCRIPTS = {
    "bash": """\
# holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
_holdfast() {
    local IFS=$'\\n'
    COMPREPLY=($(HOLDFAST_COMPLETE=1 holdfast "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//[:@=]/}
complete -F _holdfast holdfast
""",
    "zsh": """\
#compdef holdfast
# holdfast completion zsh > "${fpath[1]}/_holdfast"
_holdfast() {
    local -a found
    found=("${(@f)$(HOLDFAST_COMPLETE=1 holdfast "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
if [[ "$funcstack[1]" == "_holdfast" ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
""",
    "fish": """\
# holdfast completion fish > ~/.config/fish/completions/holdfast.fish
function __holdfast
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    HOLDFAST_COMPLETE=1 holdfast $words[2..-1] "$begun" 2>/dev/null
end
complete -c holdfast -a '(__holdfast)'
""",
}
_RUNS = ("RUN", "RUN[@N]", "RUN[@N][:PATH]", "A", "B")
"""The metavars of arguments that are runs or checkpoints."""


class Text(ui.Document, kw_only=True, tag="text"):
    """``completion``: a script"""

    name: str
    text: str


@ui.command
def completion(
    cli: ui.Cli, shell: Annotated[str, ui.Argument("SHELL", help="bash, zsh or fish.")]
) -> None:
    """Print a script that completes commands, options, run ids and tags in your shell.

    Its first lines state where to put it. To try it: source <(holdfast completion bash).
    """
    if shell not in _SCRIPTS:
        raise UsageError(
            f"there is no completion for {shell!r}", hint=f"there is for {', '.join(_SCRIPTS)}"
        )
    script = _SCRIPTS[shell]
    cli.give(Text(name=shell, text=script), lambda: [script.rstrip("\n")])


def candidates(words: Sequence[str], terminal: ui.Terminal) -> list[str]:
    """Completions of the last of *words*, which may be empty."""
    *before, begun = words or [""]
    return [one for one in _all(before, begun, terminal) if one.startswith(begun)]


def _all(before: list[str], begun: str, terminal: ui.Terminal) -> Iterator[str]:
    from holdfast.cli.app import COMMANDS, load

    name = next((word for word in before if word in COMMANDS), None)
    if name is None:
        yield from COMMANDS
        yield from ("--help", "--version", "--storage")
        return
    found = load(name)
    if begun.startswith("-"):
        for option in found.signature.options:
            yield from option.names
        return
    if name == "completion":
        yield from _SCRIPTS
    elif name == "help":
        yield from COMMANDS
    elif any(one.names[0] in _RUNS for one in found.signature.arguments):
        yield from _addresses(begun, before, terminal)


def _addresses(begun: str, before: list[str], terminal: ui.Terminal) -> Iterator[str]:
    """Run ids, names and tags, if the storage exists."""
    option = next((word for at, word in pairwise(before) if at in ("-s", "--storage")), None)
    cli = ui.Cli(terminal, storage=option, no_color=True)
    try:
        yield from _stored(cli, begun)
    except HoldfastError:
        return  # a prompt is no place for errors
    finally:
        cli.close()


def _stored(cli: ui.Cli, begun: str) -> Iterator[str]:
    if begun.startswith("tag:"):
        tags: dict[str, None] = {}
        for header in cli.storage.headers(RecordQuery(kind="tag", notes=True, limit=_MOST)):
            tags |= dict.fromkeys(header.metadata.get("add", ()))
        yield from (f"tag:{tag}" for tag in tags if tag == ui.plain(tag))
        return
    yield "latest"
    yield "tag:"
    names: dict[str, None] = {}
    runs = cli.storage.runs(RunQuery())
    fitting = (run for run in runs if run.run_id.startswith(begun) or run.name.startswith(begun))
    for run in islice(fitting, _MOST):
        if run.run_id == ui.plain(run.run_id):
            yield run.run_id
        if run.name and run.name == ui.plain(run.name):
            names[run.name] = None
    yield from names
