"""`surehold init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from surehold.cli import framework as ui
from surehold.config import DEFAULT_ADDRESS, FILE_NAME
from surehold.errors import ConflictError, UsageError
from surehold.storage.addresses import beside, mask_url, place_of
from surehold.storage.registry import open_storage

_TOML = """\
# Settings of the surehold command. Paths are relative to this file.
storage = {storage}

# What `surehold forget` keeps when it is given no rules; without this, everything.
# [retention]
# keep-last = 20
# keep-within = "24h"
# keep-daily = 7
# keep-failed = "30d"

# The graph that `surehold resume` executes for runs of a name.
# [graphs]
# report = "package.module:graph"
"""


class Init(ui.Document, kw_only=True, tag="init"):
    storage: str
    file: str
    made: list[str]


@ui.command
def init(
    cli: ui.Cli,
    directory: Annotated[Path, ui.Argument(help="Where.")] = Path("."),
    force: Annotated[bool, ui.Option(help=f"Replace an existing {FILE_NAME}.")] = False,
) -> None:
    """Create a storage and a surehold.toml that names it."""
    given = cli.settings.storage
    address = given.value if given.origin == "--storage" else DEFAULT_ADDRESS
    file = directory / FILE_NAME
    if file.exists() and not force:
        raise ConflictError(f"{file} exists already", hint="--force replaces it")
    if mask_url(address) != address:
        raise UsageError(
            f"{mask_url(address)} holds a password, which does not belong in a file",
            hint="put the address into SUREHOLD_STORAGE",
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
    cli.give(document, lambda: [ui.Line.of("created ", ui.Cell(path, "bold")) for path in made])
