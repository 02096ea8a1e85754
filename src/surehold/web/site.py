"""State shared by the handlers: manager, settings, and responses to errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from surehold.core.policy import Rules
from surehold.engine.managers import CheckpointManager
from surehold.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    StorageFullError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.storage.base import RecordQuery
from surehold.views.band import Band
from surehold.views.finder import Finder
from surehold.views.health import Surveys
from surehold.views.run import Pasts
from surehold.views.runs import Filter, SearchTexts
from surehold.web.rendering import Renderer


class OpenStorage:
    """One storage, with caches of earlier reads."""

    def __init__(self, manager: CheckpointManager) -> None:
        self.manager = manager
        self.finder = Finder(manager)
        self.surveys = Surveys(manager)
        self.texts = SearchTexts(manager)


class Site(OpenStorage):
    """One storage as a site."""

    def __init__(
        self,
        manager: CheckpointManager,
        renderer: Renderer,
        *,
        read_only: bool,
        rules: Rules,
        graphs: Mapping[str, str],
        address: str = "",
    ) -> None:
        super().__init__(manager)
        self.address = address
        self.pasts = Pasts(manager)
        self._render = renderer.page
        self.read_only = read_only
        self.rules = rules
        self.graphs = graphs

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> Response:
        """A template as a response, with the counts that every page shows."""
        try:
            band: Band | None = self.surveys.band()
        except SureholdError:  # the page says what is wrong, with or without counts
            band = None
        return self._render(request, template, status=status, band=band, **values)

    def newest_record(self) -> str:
        """The id of the newest record of the storage, from which live updates continue."""
        newest = self.manager.storage.headers(RecordQuery(limit=1, notes=True))
        return next((header.id for header in newest), "")

    def failed(self, request: Request, error: Exception) -> Response:
        """Answer an error: the fact, and what helps."""
        told = Refusal.of(error)
        damaged = error.facts.get("run_id", "") if isinstance(error, CorruptError) else None
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/api"):
            return told.response(status_of(error))
        near = error.facts.get("near", []) if isinstance(error, NotFoundError) else []
        hint = "" if damaged is not None or near else told.hint
        return self.error(request, status_of(error), told.message, hint, damaged, near)

    def error(
        self,
        request: Request,
        status: int,
        message: str,
        hint: str = "",
        damaged: Any = None,
        near: Sequence[str] = (),
    ) -> Response:
        """The page of an error, of the *damaged* run if that caused it, with *near* runs."""
        facts = {"code": status, "message": message, "hint": hint, "damaged": damaged, "near": near}
        return self.page(request, "error.html", status=status, **facts)


class Refusal(msgspec.Struct, kw_only=True):
    """An error as JSON."""

    error: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """The fact of an error, and what helps."""
        if isinstance(error, SureholdError):
            return cls(error=type(error).__name__, message=error.message, hint=error.hint)
        hint = f"{type(error).__name__}: {error}"
        return cls(error=type(error).__name__, message="This is a defect of Surehold.", hint=hint)

    def response(self, status: int) -> Response:
        """The error as an answer."""
        return Response(msgspec.json.encode(self), status, media_type="application/json")


def status_of(error: Exception) -> int:
    """The status of HTTP that an error has."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, ConflictError):
        return 409
    if isinstance(error, StorageUnavailableError):
        return 503
    if isinstance(error, StorageFullError):
        return 507
    return 400 if isinstance(error, UsageError) else 500


def asked(request: Request, name: str, kind: type[str | int] = str) -> Any:
    """A parameter of the address; None if it is absent or empty."""
    text = request.query_params.get(name, "").strip()
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}", hint="give a whole number") from None


def named(request: Request, name: str) -> str:
    """A parameter of the address that must be there."""
    text: str | None = asked(request, name)
    if text is None:
        raise NotFoundError(f"the address names no {name}", hint=f"give ?{name}=")
    return text


def filter_of(request: Request) -> Filter:
    """The runs that the address of a list asks for."""
    return Filter(
        name=asked(request, "name") or "",
        status=asked(request, "status") or "",
        search=asked(request, "search") or "",
        before=asked(request, "before", int),
    )
