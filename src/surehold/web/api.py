"""The JSON under `/api`: the documents that the commands print with ``--json``."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from surehold.engine.runs import pending
from surehold.errors import UsageError
from surehold.views.comparison import Diff, read_diff
from surehold.views.costs import CostReport
from surehold.views.documents import Document, schema_of
from surehold.views.queues import QueueList, WorkerList, read_queues
from surehold.views.runs import PER_PAGE, RunList, read_runs
from surehold.views.timeline import SHOWN, Log, read_log
from surehold.views.values import Show, read_checkpoint
from surehold.views.waiting import Pending
from surehold.web.site import OpenStorage, asked, filter_of, named

MOST = 500
DOCUMENTS: dict[str, type[Document]] = {
    "runs": RunList,
    "log": Log,
    "show": Show,
    "diff": Diff,
    "pending": Pending,
    "costs": CostReport,
    "queues": QueueList,
    "workers": WorkerList,
}
"""Each is a document at the address of that name, and a method of `Api`."""


class Api:
    """The handlers of documents."""

    def __init__(self, site: OpenStorage) -> None:
        self._site = site

    def runs(self, request: Request) -> Response:
        """``runs``; the header Link names the next page."""
        wanted = filter_of(request)
        found = read_runs(self._site.manager, self._site.texts, wanted, limit_of(request, PER_PAGE))
        answer = _json(RunList(runs=found.runs, more=found.next is not None))
        if found.next is not None:
            address = request.url.include_query_params(before=found.next)
            answer.headers["link"] = f'<{address.path}?{address.query}>; rel="next"'
        return answer

    def log(self, request: Request) -> Response:
        """``log`` of a run."""
        run = self._site.finder.run(named(request, "run"))
        history = read_log(self._site.manager, run, limit=limit_of(request, SHOWN))
        return _json(history.document())

    def show(self, request: Request) -> Response:
        """``show`` of a checkpoint."""
        header = self._site.finder.checkpoint(named(request, "checkpoint"))
        return _json(read_checkpoint(self._site.manager, header))

    def diff(self, request: Request) -> Response:
        """``diff`` of two checkpoints."""
        find = self._site.finder.checkpoint
        a, b = find(named(request, "a")), find(named(request, "b"))
        return _json(read_diff(self._site.manager, a, b))

    def pending(self, request: Request) -> Response:
        """``pending``, of one run or all."""
        run = asked(request, "run")
        run_id = None if run is None else self._site.finder.run(run).run_id
        return _json(Pending.of(pending(run_id, storage=self._site.manager)))

    def costs(self, request: Request) -> Response:
        """``costs``, of the newest recorded calls of all runs."""
        return _json(self._site.surveys.costs())

    def queues(self, request: Request) -> Response:
        """``queues``; empty where the storage keeps none."""
        view = read_queues(self._site.manager, None, None)
        if view is None:
            return _json(QueueList(queues=[], unserved=[]))
        return _json(QueueList(queues=view.queues, unserved=view.unserved))

    def workers(self, request: Request) -> Response:
        """``queue workers``; empty where the storage keeps no queues."""
        view = read_queues(self._site.manager, None, None)
        return _json(WorkerList(workers=view.workers if view is not None else []))

    def schema(self, request: Request) -> Response:
        """The addresses of documents, and the JSON Schema of each."""
        return _json({f"/api/{name}": schema_of(one) for name, one in DOCUMENTS.items()})


def limit_of(request: Request, usual: int) -> int:
    """The number of entries that a request of a list asks for."""
    limit: int | None = asked(request, "limit", int)
    if limit is not None and not 1 <= limit <= MOST:
        raise UsageError(f"limit is {limit}", hint=f"from 1 to {MOST}")
    return limit or usual


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")
