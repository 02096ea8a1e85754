"""`surehold storage`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.errors import SchemaError, UsageError
from surehold.storage.addresses import StorageURL, has_scheme
from surehold.storage.registry import open_storage

_UPGRADABLE = ("postgres", "postgresql")


class StorageFormat(ui.Document, kw_only=True, tag="storage"):
    """``storage upgrade``"""

    storage: str
    upgraded: bool
    up_to_date: bool
    problem: str


@ui.command
def storage(
    cli: ui.Cli,
    action: Annotated[
        str, ui.Argument(metavar="upgrade", help="What to do: upgrade it.")
    ] = "upgrade",
    check: Annotated[bool, ui.Option(help="Change nothing; say if it is needed.")] = False,
) -> int:
    """Bring the tables of a storage to the format of this Surehold.

    Processes of the version before continue to work meanwhile. With --check, exits with 8 if an
    upgrade is needed.
    """
    if action != "upgrade":
        raise UsageError(f"there is no storage {action!r}", hint="surehold storage upgrade")
    address = cli.settings.storage.value
    parts = [one for one in address.removeprefix("resilient:").split("|") if _has_format(one)]
    problem = "; ".join(filter(None, (_format_problem(one, upgrade=not check) for one in parts)))
    if not parts:
        _ = cli.storage
    needed = bool(problem) and not check
    document = StorageFormat(
        storage=cli.address,
        upgraded=needed,
        up_to_date=needed or not problem,
        problem=problem if check else "",
    )
    word = "upgraded" if needed else document.problem or "up to date"
    said = ui.Cell(word, "red" if document.problem else "green")
    cli.give(document, lambda: [ui.Line.of(f"{document.storage}: ", said)])
    return ui.exits.NO_LONGER_FITS if document.problem else 0


def _has_format(address: str) -> bool:
    return has_scheme(address) and StorageURL.parse(address).scheme in _UPGRADABLE


def _format_problem(address: str, *, upgrade: bool) -> str:
    """The reason that a storage needs an upgrade, else ""; with *upgrade* it gets it."""
    base, _, query = address.partition("?")
    options = [one for one in query.split("&") if one and not one.startswith("upgrade=")]
    try:
        open_storage(f"{base}?{'&'.join([*options, 'upgrade=false'])}").close()
    except SchemaError as error:
        if upgrade:
            open_storage(f"{base}?{'&'.join([*options, 'upgrade=true'])}").close()
        return error.message
    return ""
