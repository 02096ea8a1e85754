"""A storage with runs of every kind, and a way to call the command on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import surehold
from surehold import CheckpointManager
from surehold.__main__ import main
from surehold.cli.commands.start.schema import make_schemas
from surehold.cli.framework.terminal import Terminal
from surehold.demo.runs import make_runs


@cache
def validator(document: str) -> Any:
    """Checks documents of a type; its schema is checked by the tests of `surehold schema`."""
    import jsonschema  # proofs, which check no documents, have it not

    return jsonschema.Draft202012Validator(make_schemas()[document])


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Its document, checked against the schema that is shipped for it."""
        document: dict[str, Any] = msgspec.json.decode(self.out)
        validator(document["type"]).validate(document)
        return document

    def lines(self) -> list[dict[str, Any]]:
        """Its lines of JSON."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


class Asked(StringIO):
    """A terminal at which someone types."""

    def isatty(self) -> bool:
        return True


def call(
    *words: str,
    typed: str | None = None,
    environ: dict[str, str] | None = None,
    width: int | None = None,
    color: bool = False,
) -> Result:
    """Call the command in this process; with *typed*, at a terminal."""
    out, err = StringIO(), StringIO() if typed is None else Asked()
    stdin = StringIO() if typed is None else Asked(typed)
    terminal = Terminal(out, err, stdin, environ=environ or {}, color=color, width=width)
    code = main(list(words), terminal=terminal)
    return Result(code, out.getvalue(), err.getvalue())


Surehold = Callable[..., Result]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs of every kind. Tests get a copy of it."""
    path = tmp_path_factory.mktemp("demo") / "runs.db"
    with CheckpointManager(f"sqlite:///{path}?compress=false") as manager:
        with surehold.run("crawl", storage=manager) as run:
            for page in range(1, 6):
                run.checkpoint(node="read", pages=page, last=f"page-{page}")
        make_runs(manager)
    return path


@pytest.fixture
def database(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the database, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    return Path(shutil.copy(made, tmp_path / "runs.db"))


@pytest.fixture
def on(database: Path) -> Surehold:
    """Calls the command on the copy."""

    def run(*words: str, **options: Any) -> Result:
        return call("-s", f"sqlite:///{database}", *words, **options)

    return run


@pytest.fixture
def manager(database: Path) -> Any:
    with CheckpointManager(f"sqlite:///{database}") as manager:
        yield manager
