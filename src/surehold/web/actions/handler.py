"""The requests that ask for an action, confirm it, or export a run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from surehold.demo.runs import make_runs
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RunQuery
from surehold.views.run import run_of
from surehold.views.waiting import WaitingPage
from surehold.web.actions.answers import AnswerAction, RetractAction
from surehold.web.actions.forks import ForkAction
from surehold.web.actions.marks import PinAction, TagAction
from surehold.web.actions.messages import SendAction
from surehold.web.actions.plan import Action, ActionPlan, run_in
from surehold.web.actions.queues import CancelAction, LimitAction, PauseAction, RequeueAction
from surehold.web.actions.repairs import RepairAction, VerifyAction
from surehold.web.actions.resumes import ResumeAction, ResumeProcesses, RewindAction
from surehold.web.actions.retention import ForgetAction
from surehold.web.forms import Given
from surehold.web.sessions import Sessions
from surehold.web.single_file import run_file
from surehold.web.site import Site

_FORMS = {"html": "text/html", "json": "application/json", "surehold": "application/octet-stream"}


class Actions:
    """The handlers that change something, and the exports."""

    def __init__(self, site: Site, *, address: str, links: Sessions | None) -> None:
        self._site = site
        self._links = links
        resume = ResumeAction(site, ResumeProcesses(address))
        self._actions: dict[str, Action] = {
            "answer": AnswerAction(site),
            "send": SendAction(site),
            "retract": RetractAction(site),
            "fork": ForkAction(site),
            "rewind": RewindAction(site, resume),
            "tag": TagAction(site),
            "pin": PinAction(site),
            "forget": ForgetAction(site),
            "verify": VerifyAction(site),
            "repair": RepairAction(site),
            "resume": resume,
            "pause": PauseAction(site),
            "limit": LimitAction(site),
            "cancel": CancelAction(site),
            "requeue": RequeueAction(site),
            "demo": DemoAction(site),
        }

    def ask(self, request: Request) -> Response:
        """Show what an action will do."""
        name, action = self._named(request)
        given = dict(request.query_params)
        try:
            plan = action.ask(given)
        except UsageError as error:
            return self._again(request, action, given, error)
        return self._site.page(request, "act.html", plan=plan, action=name)

    def _again(self, request: Request, action: Action, given: Given, error: UsageError) -> Response:
        """The form that was filled in wrongly, with what was written; else the error."""
        if not isinstance(action, AnswerAction):
            raise error
        one = action.wanted(given)
        wrong = (error.facts.get("field", ""), f"{error.message}. {error.hint}".strip(". "))
        runs = {one.run_id: run_of(self._site.manager, one.run_id)}
        view = WaitingPage(found=[one], runs=runs, damaged=[], next=None)
        return self._site.page(
            request,
            "waiting.html",
            status=400,
            view=view,
            before=None,
            after="",
            context={},
            given=given,
            wrong=wrong,
        )

    async def perform(self, request: Request) -> Response:
        """Do what was confirmed, and show the outcome."""
        given: Given = request.scope["surehold_form"]
        who = request.scope["surehold"].name
        if request.path_params["action"] == "link" and self._links is not None:
            link = f"{request.base_url}?token={self._links.new_token()}"
            return self._site.page(request, "link.html", link=link)
        _, action = self._named(request)
        try:
            to = await run_in_threadpool(action.do, given, who)
        except UsageError as error:
            return await run_in_threadpool(self._again, request, action, given, error)
        self._site.surveys.forget()
        return RedirectResponse(f"{request.scope.get('root_path', '')}{to}", 303)

    def _named(self, request: Request) -> tuple[str, Action]:
        name = request.path_params["action"]
        if name not in self._actions:
            raise NotFoundError(f"there is no action {name!r}")
        return name, self._actions[name]

    def export(self, request: Request) -> Response:
        """Give a run as a file."""
        run = run_in(self._site, dict(request.query_params))
        form = request.query_params.get("form", "surehold")
        if form not in _FORMS:
            raise UsageError(f"there is no form {form!r}", hint="surehold, html or json")
        if form == "json":
            text = self._site.manager.export_json(run.run_id)
            name = 'attachment; filename="run.json"'
            return Response(text, media_type=_FORMS[form], headers={"content-disposition": name})
        directory = tempfile.TemporaryDirectory()
        path = Path(directory.name) / f"run.{form}"
        if form == "html":
            with path.open("w", encoding="utf-8") as file:
                file.writelines(run_file(self._site.manager, run))
        else:
            self._site.manager.export_run(run.run_id, path)
        return FileResponse(
            path,
            media_type=_FORMS[form],
            filename=path.name,
            background=BackgroundTask(directory.cleanup),
        )


class DemoAction(Action):
    """Loads the demonstration into an empty storage."""

    def ask(self, given: Given) -> ActionPlan:
        return ActionPlan(
            title="Load the demonstration",
            what=["Four runs of one graph are made here: completed, failed, waiting, forked."],
            command="surehold demo",
            python="# only as a command",
            button="Load the demonstration",
            back="/",
        )

    def do(self, given: Given, who: str) -> str:
        manager = self._site.manager
        if any(manager.storage.runs(RunQuery(limit=1))):
            raise UsageError("there are runs already", hint="the demonstration wants a new storage")
        make_runs(manager)
        return "/"
