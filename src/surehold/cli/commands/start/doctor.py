"""`surehold doctor`."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import msgspec

from surehold.cli import framework as ui
from surehold.errors import SureholdError
from surehold.storage.base import Diagnosable, Fact, RunQuery

_NEED = re.compile(r"([\w.-]+)(\[[\w,-]*\])?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?.*")
"""A package that Surehold's own metadata names, its options, and the extra that installs it."""

_GUARANTEES = {
    "sqlite": "survives crashes and power loss; many processes of one machine; leases",
    "file": "survives crashes and power loss; many processes; leases; readable with cat",
    "postgresql": "a commit of the server; many machines; leases; notifies of changes",
    "redis": "the server's append-only file; many machines; leases; notifies of changes",
    "s3": "an acknowledged object; many machines; leases; gs: and az: alike",
    "cosmos": "an acknowledged document; many machines; leases",
    "resilient": "what the storages under it guarantee; works while one of them is unavailable",
    "memory": "nothing survives the process",
}


class Setting(msgspec.Struct, kw_only=True):
    """A setting and its origin."""

    name: str
    value: Any
    origin: str


class Package(msgspec.Struct, kw_only=True):
    """A package that Surehold can use."""

    name: str
    version: str | None
    extra: str
    """The extras that install it; empty if it is always installed."""


class StorageKind(msgspec.Struct, kw_only=True):
    """A kind of storage and its guarantees."""

    scheme: str
    available: bool
    guarantees: str


class Doctor(ui.Document, kw_only=True, tag="doctor"):
    versions: dict[str, str]
    settings: list[Setting]
    packages: list[Package]
    storages: list[StorageKind]
    storage: str
    reachable: bool
    problem: str
    facts: list[Fact]
    """What the server behind the storage says of itself; empty where there is none."""


@ui.command
def doctor(cli: ui.Cli) -> int:
    """Report packages, guarantees of each storage, and the origin of each setting.

    Of a server it reports version, latency, durability, clock, rights, and what is wrong; the
    exit code is 1 if anything is.
    """
    document = read_doctor(cli)
    cli.give(document, lambda: _text(document))
    if not document.reachable:
        return ui.exits.NO_STORAGE
    return ui.exits.FAILED if any(fact.problem for fact in document.facts) else 0


def read_doctor(cli: ui.Cli) -> Doctor:
    """The installation and its settings."""
    settings, problem = cli.settings, ""
    facts: list[Fact] = []
    try:
        next(iter(cli.storage.runs(RunQuery(limit=1))), None)
        if isinstance(cli.storage, Diagnosable):
            facts = cli.storage.diagnose()
    except SureholdError as error:
        problem = f"{error.message} ({ui.help_for(error)})"
    named = {name: getattr(settings, name) for name in ("retention", "expire", "graphs")}
    return Doctor(
        versions=_versions(),
        settings=[
            Setting(name="storage", value=cli.address, origin=settings.storage.origin),
            *(Setting(name=name, value=o.value, origin=o.origin) for name, o in named.items()),
            _key_setting(cli),
        ],
        packages=read_packages(),
        storages=list(_media()),
        storage=cli.address,
        reachable=not problem,
        problem=problem,
        facts=facts,
    )


def read_packages() -> list[Package]:
    """The packages that Surehold can use, as its metadata names them."""
    extras: dict[str, list[str]] = {}
    try:
        needs = [_NEED.fullmatch(text.lower()) for text in requires("surehold") or ()]
    except PackageNotFoundError:  # it runs from a zip, say
        needs = []
    for need in filter(None, needs):
        name, options, extra = need.groups()
        for one in (name, *([f"{name}-pool"] if "pool" in (options or "") else [])):
            if extra != "all":
                extras.setdefault(one, []).append(extra or "")
    return [
        Package(name=name, version=_version(name), extra=", ".join(dict.fromkeys(named)))
        for name, named in extras.items()
    ]


def _versions() -> dict[str, str]:
    import apsw

    return {
        "surehold": _version("surehold") or "",
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


def _key_setting(cli: ui.Cli) -> Setting:
    """Report if an encryption key is set, and where; never the key."""
    for name in ("SUREHOLD_ENCRYPTION_KEY", "SUREHOLD_ENCRYPTION_KEY_FILE"):
        if cli.terminal.environ.get(name, "").strip():
            return Setting(name="encryption", value="on", origin=name)
    return Setting(name="encryption", value="off", origin="default")


def _media() -> Iterator[StorageKind]:
    from importlib.metadata import entry_points

    for scheme, guarantees in _GUARANTEES.items():
        yield StorageKind(scheme=scheme, available=True, guarantees=guarantees)
    for plugin in entry_points(group="surehold.storages"):
        package = plugin.dist.name if plugin.dist else plugin.value
        yield StorageKind(scheme=plugin.name, available=True, guarantees=f"those of {package}")


def _text(document: Doctor) -> Iterator[object]:
    for name, value in document.versions.items():
        yield ui.Line.of(ui.Cell(f"{name:<12}", "dim"), value)
    yield ""
    yield ui.Table.of(
        document.settings,
        ui.Column("setting", lambda one: one.name),
        ui.Column("value", lambda one: one.value or "", gives=True),
        ui.Column("from", lambda one: one.origin, gives=True),
    )
    yield ""
    yield ui.Table.of(
        document.packages,
        ui.Column("package", lambda one: one.name),
        ui.Column("version", lambda one: one.version or ui.Cell("missing", "yellow")),
        ui.Column("how to get it", _how_to_get),
    )
    yield ""
    yield ui.Table.of(
        document.storages,
        ui.Column("storage", lambda one: f"{one.scheme}:"),
        ui.Column("guarantees", gives=True),
    )
    yield ""
    if document.facts:
        yield ui.Table.of(
            document.facts,
            ui.Column("fact", lambda one: one.name),
            ui.Column("value", _fact_value, gives=True),
            ui.Column("what to do", _advice, gives=True),
        )
        yield ""
    wrong = ", ".join(fact.name for fact in document.facts if fact.problem)
    said = document.problem or (f"reachable, see above: {wrong}" if wrong else "ok")
    named = "" if said.startswith(document.storage) else f"{document.storage}: "
    yield ui.Line.of(named, ui.Cell(said, "green" if said == "ok" else "red"))


def _how_to_get(one: Package) -> ui.Cell:
    missing = one.extra and not one.version
    return ui.Cell(f"pip install 'surehold[{one.extra}]'" if missing else "", "dim")


def _advice(one: Fact) -> ui.Cell:
    return ui.Cell(one.hint if one.problem else "", "yellow")


def _fact_value(one: Fact) -> object:
    return ui.Cell(f"{one.value}: {one.problem}", "red") if one.problem else one.value
