"""`holdfast init` and `holdfast doctor`."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from holdfast.cli.commands.start.documents import Doctor, Init, Medium, Package, Setting
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Line,
    Option,
    Table,
    command,
    help_for,
)
from holdfast.cli.settings import FILE_NAME, beside, place_of
from holdfast.errors import ConflictError, HoldfastError, UsageError
from holdfast.storage.addresses import mask_url

__all__ = ["doctor", "init"]

_TOML = """\
# Settings of the holdfast command. Paths are relative to this file.
storage = {storage}

# What `holdfast forget` keeps when it is given no rules; without this, everything.
# [retention]
# keep-last = 20
# keep-within = "24h"
# keep-daily = 7
# keep-failed = "30d"

# Which graph `holdfast resume` runs for runs of a name.
# [graphs]
# report = "package.module:graph"
"""

_PACKAGES = (
    ("msgspec", ""),
    ("apsw", ""),
    ("zstandard", ""),
    ("stamina", ""),
    ("rich", ""),
    ("prompt_toolkit", ""),
    ("pyyaml", ""),
    ("cryptography", "crypto"),
    ("langgraph", "langgraph"),
    ("agent-framework-core", "agent-framework"),
    ("pydantic-ai-slim", "llm"),
    ("xllamacpp", "local"),
    ("opentelemetry-api", "otel"),
)

_GUARANTEES = {
    "sqlite": "survives crashes and power loss; many processes of one machine; leases",
    "file": "survives crashes and power loss; many processes; leases; readable with cat",
    "resilient": "what the storages under it guarantee; goes on while one of them is away",
    "memory": "nothing survives the process",
}


@command
def init(
    cli: Cli,
    directory: Annotated[Path, Argument(metavar="DIRECTORY", help="Where.")] = Path("."),
    force: Annotated[
        bool, Option("--force", help=f"Write {FILE_NAME} anew if it is there.")
    ] = False,
) -> None:
    """Make a storage and a holdfast.toml that names it."""
    from holdfast.storage.registry import DEFAULT_ADDRESS, open_storage

    given = cli.settings.storage
    address = given.value if given.origin == "--storage" else DEFAULT_ADDRESS
    file = directory / FILE_NAME
    if file.exists() and not force:
        raise ConflictError(f"{file} is there already", hint="--force writes it anew")
    if mask_url(address) != address:
        raise UsageError(
            f"{mask_url(address)} holds a password, which does not belong into a file",
            hint="put the address into HOLDFAST_STORAGE",
        )
    directory.mkdir(parents=True, exist_ok=True)
    opened = beside(address, directory)
    place = place_of(opened)
    made = [str(place)] if place is not None and not place.exists() else []
    open_storage(opened).close()
    if place is not None and opened.startswith("file:"):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(_TOML.format(storage=json.dumps(address)), "utf-8")
    made.append(str(file))
    document = Init(storage=address, file=str(file), made=made)

    def text() -> Iterator[object]:
        for path in made:
            yield Line.of("made ", Cell(path, "bold"))

    cli.give(document, text)


@command
def doctor(cli: Cli) -> int:
    """Tell what is installed, what each storage guarantees, and where each setting came from."""
    settings = cli.settings
    problem, reachable = "", True
    try:
        from holdfast.storage.base import RunQuery

        next(iter(cli.storage.runs(RunQuery(limit=1))), None)
    except HoldfastError as error:
        problem, reachable = f"{error.message} ({help_for(error)})", False
    document = Doctor(
        versions=_versions(),
        settings=[
            Setting(name="storage", value=cli.address, origin=settings.storage.origin),
            *(
                Setting(name=name, value=told.value, origin=told.origin)
                for name, told in (("retention", settings.retention), ("graphs", settings.graphs))
            ),
            _key_setting(cli),
        ],
        packages=[Package(name=n, version=_version(n), extra=extra) for n, extra in _PACKAGES],
        storages=list(_media()),
        storage=cli.address,
        reachable=reachable,
        problem=problem,
    )
    cli.give(document, lambda: _text(document))
    return 0 if reachable else 10


def _versions() -> dict[str, str]:
    import apsw

    return {
        "holdfast": _version("holdfast") or "",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "executable": sys.executable,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _key_setting(cli: Cli) -> Setting:
    """Whether there is an encryption key, and where from; never which."""
    for name in ("HOLDFAST_ENCRYPTION_KEY", "HOLDFAST_ENCRYPTION_KEY_FILE"):
        if cli.terminal.environ.get(name, "").strip():
            return Setting(name="encryption", value="on", origin=name)
    return Setting(name="encryption", value="off", origin="default")


def _media() -> Iterator[Medium]:
    from importlib.metadata import entry_points

    for scheme, guarantees in _GUARANTEES.items():
        yield Medium(scheme=scheme, available=True, guarantees=guarantees)
    for plugin in entry_points(group="holdfast.storages"):
        package = plugin.dist.name if plugin.dist else plugin.value
        yield Medium(scheme=plugin.name, available=True, guarantees=f"those of {package}")


def _text(document: Doctor) -> Iterator[object]:
    for name, value in document.versions.items():
        yield Line.of(Cell(f"{name:<12}", "dim"), value)
    yield ""
    columns = (Column("setting"), Column("value", gives=True), Column("from", gives=True))
    yield Table(columns, [[one.name, one.value or "", one.origin] for one in document.settings])
    yield ""
    columns = (Column("package"), Column("version"), Column("how to get it"))
    rows = []
    for one in document.packages:
        missing = Cell("missing", "yellow")
        how = f"pip install 'holdfast[{one.extra}]'" if one.extra and not one.version else ""
        rows.append([one.name, one.version or missing, Cell(how, "dim")])
    yield Table(columns, rows)
    yield ""
    yield Table(
        (Column("storage"), Column("guarantees", gives=True)),
        [[f"{one.scheme}:", one.guarantees] for one in document.storages],
    )
    yield ""
    word = Cell("ok", "green") if document.reachable else Cell(document.problem, "red")
    yield Line.of(f"{document.storage}: ", word)
