"""State shared by the handlers: manager, settings, and responses to errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from surehold.core.policy import Rules
from surehold.engine.managers import CheckpointManager
from surehold.errors import ConflictError, CorruptError, NotFoundError, SureholdError, UsageError
from surehold.storage.base import RecordQuery
from surehold.views.band import Band
from surehold.views.finder import Finder
from surehold.views.health import Surveys
from surehold.views.run import Pasts
from surehold.views.runs import Filter, SearchTexts
from surehold.web.rendering import Renderer


class Site:
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
        self.address = address
        self.manager = manager
        self.finder = Finder(manager)
        self.pasts = Pasts(manager)
        self.surveys = Surveys(manager)
        self.texts = SearchTexts(manager)
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
        known = error if isinstance(error, SureholdError) else None
        message = known.message if known else "This is a defect of Surehold."
        hint = known.hint if known else f"{type(error).__name__}: {error}"
        damaged = error.facts.get("run_id", "") if isinstance(error, CorruptError) else None
        status = _status_of(error)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/api"):
            failure = {"error": type(error).__name__, "message": message, "hint": hint}
            return Response(msgspec.json.encode(failure), status, media_type="application/json")
        return self.error(request, status, message, "" if damaged is not None else hint, damaged)

    def error(
        self, request: Request, status: int, message: str, hint: str = "", damaged: Any = None
    ) -> Response:
        """The page of an error; *damaged*: the run whose damage caused it."""
        facts = {"code": status, "message": message, "hint": hint, "damaged": damaged}
        return self.page(request, "error.html", status=status, **facts)


def _status_of(error: Exception) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, ConflictError):
        return 409
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
