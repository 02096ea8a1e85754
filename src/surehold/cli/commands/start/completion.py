"""`surehold completion`, and the candidates that its scripts ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.listing import COMMANDS, load
from surehold.errors import SureholdError, UsageError
from surehold.storage.base import RecordQuery, RunQuery

_MOST = 200
_SCRIPTS = {
    "bash": """\
# surehold completion bash > ~/.local/share/bash-completion/completions/surehold
_surehold() {
    local IFS=$'\\n'
    COMPREPLY=($(SUREHOLD_COMPLETE=1 surehold "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//[:@=]/}
complete -F _surehold surehold
""",
    "zsh": """\
#compdef surehold
# surehold completion zsh > "${fpath[1]}/_surehold"
_surehold() {
    local -a found
    found=("${(@f)$(SUREHOLD_COMPLETE=1 surehold "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
if [[ "$funcstack[1]" == "_surehold" ]]; then _surehold "$@"; else compdef _surehold surehold; fi
""",
    "fish": """\
# surehold completion fish > ~/.config/fish/completions/surehold.fish
function __surehold
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    SUREHOLD_COMPLETE=1 surehold $words[2..-1] "$begun" 2>/dev/null
end
complete -c surehold -a '(__surehold)'
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

    Its first lines state where to put it. To try it: source <(surehold completion bash).
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
    except SureholdError:
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
