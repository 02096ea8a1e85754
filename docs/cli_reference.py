"""A hook of mkdocs: the reference of the command from its help, and the version in the frame."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from typing import Any

import surehold
from surehold.__main__ import main
from surehold.cli.listing import COMMANDS

MARK = "<!-- the help of every command -->"
EXAMPLES = {
    "runs": "surehold runs report --status failed",
    "log": "surehold log report-mon --graph",
    "show": "surehold show report-mon@3",
    "cat": "surehold cat report-mon@5:report",
    "diff": "surehold diff report-mon report-mon-kids",
    "blame": "surehold blame report-mon report",
    "status": "surehold status || echo 'somebody has to look'",
    "stats": "surehold stats",
    "costs": "surehold costs",
    "watch": "surehold watch --all",
    "tree": "surehold tree report-mon",
    "resume": "surehold resume report-tue --dry-run",
    "fork": "surehold fork report-mon@3 --set audience=children",
    "tag": "surehold tag report-mon@6 published",
    "pin": "surehold pin report-mon@3",
    "group": "surehold group checkpoint books",
    "pending": "surehold pending",
    "approve": "surehold approve report-wed",
    "reject": "surehold reject report-wed --reason 'no sources'",
    "answer": "surehold answer report-wed approve@6 true",
    "send": "surehold send report-wed notes 'use shorter words'",
    "queue": "surehold queue dead nightly",
    "exec": "surehold exec --run nightly -- python agent.py",
    "replay": "surehold replay nightly",
    "check": "surehold check app:nightly",
    "bisect": "surehold bisect report-mon --bad 'len(report) > 50'",
    "savings": "surehold savings",
    "forget": "surehold forget report-mon --keep-last 2 --dry-run",
    "prune": "surehold prune --dry-run",
    "expire": "surehold expire --older 90d --dry-run",
    "verify": "surehold verify --read-data",
    "repair": "surehold repair report-mon",
    "policy": "surehold policy",
    "encrypt": "surehold encrypt report-mon",
    "rotate-key": "surehold rotate-key",
    "storage": "surehold storage --check",
    "export": "surehold export report-mon --html -o report-mon.html",
    "import": "surehold import report-mon.json",
    "copy": "surehold copy --to postgresql://localhost/runs",
    "migrate": "surehold migrate report-mon",
    "migrate-runs": "surehold migrate-runs app:nightly@1 app:nightly@2",
    "import-langgraph": "surehold import-langgraph sqlite checkpoints.db",
    "demo": "surehold demo",
    "ui": "surehold ui --open",
    "serve": "surehold serve app:nightly",
    "worker": "surehold worker app:nightly --queues nights",
    "repl": "surehold repl workflow.yaml",
    "init": "surehold init",
    "doctor": "surehold doctor",
    "selftest": "surehold selftest",
    "completion": "surehold completion bash",
    "schema": "surehold schema runs",
    "help": "surehold help resume",
}


def on_config(config: Any, **_: Any) -> Any:
    """Put version and licence below every page."""
    config["copyright"] = f"Surehold {surehold.__version__} · Apache License 2.0"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help where a page asks for it."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """What `surehold --help` says, and `--help` of each command, by groups."""
    parts = [help_of()]
    for group, entries in groupby(COMMANDS.items(), lambda item: item[1].group):
        parts.append(f"## {group}")
        parts += [
            f"### surehold {name}\n\n```bash\n{EXAMPLES[name]}\n```\n\n{help_of(name)}"
            for name, _ in entries
        ]
    return "\n\n".join(parts)


def help_of(*command: str) -> str:
    """What the command prints when it is asked for help, as it is printed."""
    with redirect_stdout(StringIO()) as printed:
        if main([*command, "--help"]) != 0:
            raise SystemExit(f"surehold {' '.join(command)} --help failed")
    return f"```text\n{printed.getvalue().strip()}\n```"
