"""Actions: each is asked for with what it will do, confirmed once, and then done.

An `ActionPlan` states what will happen, the same as a command and as a line of Python, and the
form that confirms it.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from holdfast.checkpoint.effects import Waiting, answer, check_fits, pending
from holdfast.checkpoint.operations import mark_note
from holdfast.checkpoint.repair import verify_run
from holdfast.checkpoint.retention import bulk
from holdfast.cli.commands.act import fork_from
from holdfast.cli.commands.keep import plan_forget
from holdfast.cli.commands.start import make_runs
from holdfast.cli.framework import read_value, recorded_entry
from holdfast.core.policy import Rules
from holdfast.core.records import Header
from holdfast.core.state import read_tags
from holdfast.errors import HoldfastError, NotFoundError, UsageError
from holdfast.runtime.resume import explain
from holdfast.storage.base import RunInfo, RunQuery
from holdfast.web.resuming import Resuming
from holdfast.web.sessions import Sessions
from holdfast.web.site import Site

__all__ = ["ActionPlan", "Actions", "Field"]

Given = Mapping[str, str]
_SHOWN = 200


class Field(msgspec.Struct, frozen=True):
    """A field of a form that confirms an action."""

    name: str
    label: str
    value: str = ""
    lines: int = 1
    help: str = ""


class ActionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A preview of an action."""

    title: str
    what: list[str]
    command: str
    python: str
    button: str
    hidden: dict[str, str] = {}
    fields: list[Field] = []
    table: list[tuple[str, ...]] = []
    heads: tuple[str, ...] = ()
    left_out: int = 0
    problem: str = ""
    """The reason why it cannot be done; there is no button then."""
    previews: bool = False
    """True if the fields are sent to the page itself first, to see what they change."""


class Actions:
    """The handlers that change something, and the exports."""

    def __init__(self, site: Site, *, address: str, links: Sessions | None) -> None:
        self._site = site
        self._links = links
        self._resuming = Resuming(address)
        self._asks: dict[str, Callable[[Given], ActionPlan]] = {
            "answer": self._ask_answer,
            "fork": self._ask_fork,
            "tag": self._ask_tag,
            "pin": self._ask_pin,
            "forget": self._ask_forget,
            "verify": self._ask_verify,
            "resume": self._ask_resume,
            "demo": self._ask_demo,
        }
        self._dos: dict[str, Callable[[Given, str], str]] = {
            "answer": self._answer,
            "fork": self._fork,
            "tag": self._tag,
            "pin": self._pin,
            "forget": self._forget,
            "resume": self._resume,
            "demo": self._demo,
        }

    def ask(self, request: Request) -> Response:
        """Show what an action will do."""
        action = request.path_params["action"]
        if action not in self._asks:
            raise NotFoundError(f"there is no action {action!r}")
        plan = self._asks[action](dict(request.query_params))
        return self._site.page(request, "act.html", plan=plan, action=action)

    async def perform(self, request: Request) -> Response:
        """Do what was confirmed, and show the outcome."""
        action = request.path_params["action"]
        given: Given = request.scope["holdfast_form"]
        who = request.scope["holdfast"].name
        if action == "link" and self._links is not None:
            token = self._links.new_token()
            link = f"{request.base_url}?token={token}"
            return self._site.page(request, "link.html", link=link)
        if action not in self._dos:
            raise NotFoundError(f"there is no action {action!r}")
        to = await run_in_threadpool(self._dos[action], given, who)
        return RedirectResponse(f"{request.scope.get('root_path', '')}{to}", 303)

    def export(self, request: Request) -> Response:
        """Give a run as a file."""
        run = self._run(dict(request.query_params))
        form = request.query_params.get("form", "holdfast")
        if form == "json":
            text = self._site.manager.export_json(run.run_id)
            return Response(text, media_type="application/json", headers=_as_file("run.json"))
        if form != "holdfast":
            raise UsageError(f"there is no form {form!r}", hint="holdfast or json")
        directory = tempfile.TemporaryDirectory()
        path = Path(directory.name) / "run.holdfast"
        self._site.manager.export_run(run.run_id, path)
        done = BackgroundTask(directory.cleanup)
        return FileResponse(
            path, media_type="application/octet-stream", filename=path.name, background=done
        )

    def _run(self, given: Given) -> RunInfo:
        run = self._site.manager.reader.run(given.get("id", ""))
        if run is None:
            raise NotFoundError(f"there is no run {given.get('id', '')!r}")
        return run

    def _header(self, given: Given) -> Header:
        return self._site.finder.checkpoint(given.get("checkpoint", ""))

    # Answer

    def _wanted(self, given: Given) -> Waiting:
        run_id, id = given.get("id", ""), given.get("waiting", "")
        for one in pending(run_id, storage=self._site.manager):
            if one.id == id:
                return one
        raise NotFoundError(
            f"run {run_id!r} does not wait for {id!r} any more",
            hint="someone may have answered, or its process runs again",
        )

    def _ask_answer(self, given: Given) -> ActionPlan:
        one, how = self._wanted(given), given.get("how", "")
        outcome = _outcome(one, given)
        said = f"holdfast.answer({one.run_id!r}, {one.id!r}, "
        command = ["holdfast", "answer", one.run_id]
        if "value" in outcome:
            text = msgspec.json.encode(outcome["value"]).decode()
            python, words = f"{said}{outcome['value']!r})", [text, "--id", one.id]
            what = f"The answer to {one.id} is recorded as {text}."
        elif "error" in outcome:
            error = outcome["error"]
            python, words = f"{said}error={error!r})", ["--error", error, "--id", one.id]
            what = f"The effect {one.id} is recorded as failed with {error!r}."
        else:
            python, words = f"{said}repeat=True)", ["--repeat", "--id", one.id]
            what = f"The effect {one.id} is recorded as not done: a resume calls it again."
        return ActionPlan(
            title=f"{how.capitalize()} {one.id} of {one.run_id}",
            what=[what, "Nothing is executed now: a resume continues with it."],
            command=shlex.join([*command, *words]),
            python=python,
            button=how.capitalize(),
            hidden={name: given.get(name, "") for name in ("id", "waiting", "how", "value")},
        )

    def _answer(self, given: Given, who: str) -> str:
        one = self._wanted(given)
        outcome = _outcome(one, given)
        answer(one.run_id, one.id, **outcome, by=who, storage=self._site.manager)
        return _page_of(one.run_id)

    # Fork

    def _ask_fork(self, given: Given) -> ActionPlan:
        header = self._header(given)
        return ActionPlan(
            title=f"Fork {header.run_id} at step {header.step}",
            what=[
                f"A new run begins with the state of checkpoint {header.id}.",
                "It inherits no effects: it calls what it needs again.",
                f"Run {header.run_id} stays as it is.",
            ],
            command=shlex.join(["holdfast", "fork", header.id, "--set", "KEY=VALUE"]),
            python=f"manager.fork_from_checkpoint({header.id!r})",
            button="Fork",
            hidden={"checkpoint": header.id},
            fields=[
                Field("run_id", "Run id of the fork", help="Empty: a new one is made."),
                Field(
                    "edit",
                    "Values to change",
                    "{}",
                    6,
                    'A JSON object, such as {"topic": "kelp"}; other keys stay.',
                ),
            ],
        )

    def _fork(self, given: Given, who: str) -> str:
        try:
            edit = msgspec.json.decode(given.get("edit") or "{}", type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise UsageError(f"the values to change are no JSON object: {error}") from error
        made = fork_from(self._site.manager, self._header(given), edit, given.get("run_id") or None)
        return _page_of(made.run_id)

    # Marks

    def _ask_tag(self, given: Given) -> ActionPlan:
        header = self._header(given)
        return ActionPlan(
            title=f"Tag step {header.step} of {header.run_id}",
            what=[f"Tags are added to checkpoint {header.id}, or removed from it."],
            command=shlex.join(["holdfast", "tag", header.id, "NAME"]),
            python=f"manager.tag({header.id!r}, 'NAME')",
            button="Tag",
            hidden={"checkpoint": header.id},
            fields=[
                Field("add", "Add", help="Several are separated by spaces."),
                Field("remove", "Remove", help=f"It has: {', '.join(header.tags) or 'none'}."),
            ],
        )

    def _tag(self, given: Given, who: str) -> str:
        header = self._header(given)
        new = read_tags(given.get("add", "").split())
        old = read_tags(given.get("remove", "").split())
        if not new and not old:
            raise UsageError("no tag is given", hint="name one to add or to remove")
        self._mark(header, "tag", new, {"add": [*new], "remove": [*old], "by": who})
        return _page_of(header.run_id, header.seq)

    def _ask_pin(self, given: Given) -> ActionPlan:
        header = self._header(given)
        pinned = header.seq in self._site.manager.retention.marks(header.run_id).pinned
        word = "Unpin" if pinned else "Pin"
        does = "The retention rules decide about" if pinned else "No retention rule drops"
        return ActionPlan(
            title=f"{word} step {header.step} of {header.run_id}",
            what=[f"{does} checkpoint {header.id}{' again' if pinned else ''}."],
            command=shlex.join(["holdfast", "pin", header.id, *(["--remove"] if pinned else [])]),
            python=f"manager.{word.lower()}({header.id!r})",
            button=word,
            hidden={"checkpoint": header.id, "on": "" if pinned else "1"},
        )

    def _pin(self, given: Given, who: str) -> str:
        header = self._header(given)
        self._mark(header, "pin", (), {"on": bool(given.get("on")), "by": who})
        return _page_of(header.run_id, header.seq)

    def _mark(
        self, header: Header, kind: str, tags: tuple[str, ...], content: dict[str, Any]
    ) -> None:
        note = mark_note(header, kind, tags, content)
        self._site.manager.append_notes(header.run_id, (note,))

    # Retention

    def _retention(self, given: Given) -> tuple[list[RunInfo], Rules, list[str]]:
        """The runs that are meant, the rules, and both as words of a command."""
        manager = self._site.manager
        if given.get("id"):
            runs, words = [self._run(given)], [given["id"]]
        else:
            name = given.get("name", "")
            runs = list(manager.storage.runs(RunQuery(name=name or None)))
            words = [run.run_id for run in runs] if name else []
        named = {k: given[k].strip() for k in ("keep_last", "keep_within") if given.get(k)}
        for rule, value in named.items():
            words += [f"--{rule.replace('_', '-')}", value]
        return runs, Rules.from_mapping(named) if named else self._site.rules, words

    def _ask_forget(self, given: Given) -> ActionPlan:
        runs, rules, words = self._retention(given)
        decisions, document = plan_forget(self._site.manager, runs, rules, "page")
        where = given.get("id") or given.get("name") or "all runs"
        none = "" if document.forgotten else "These rules drop nothing."
        if rules.empty:
            none = "There are no rules, so nothing is dropped. Give one below and preview."
        gone = [one for one in decisions if not one.keep]
        kept = [one for one in decisions if one.keep]
        listed = [*gone, *kept]
        return ActionPlan(
            title=f"Forget checkpoints of {where}",
            what=[
                f"{document.forgotten:,} are dropped and {document.kept:,} are kept, as below.",
                f"holdfast prune then frees {document.freed_bytes:,} bytes.",
                "The newest checkpoint of a run and pinned ones are never dropped.",
            ],
            command=shlex.join(["holdfast", "forget", *words]),
            python=_cleanup(given, document.rules),
            button=f"Drop {document.forgotten:,}",
            hidden={name: given.get(name, "") for name in ("id", "name")},
            fields=[
                Field("keep_last", "Keep the newest", given.get("keep_last", ""), help="A count."),
                Field(
                    "keep_within", "Keep all within", given.get("keep_within", ""), help="As 7d12h."
                ),
            ],
            heads=("Checkpoint", "Saved", "Decision", "Reasons"),
            table=[
                (
                    f"{one.header.run_id}@{one.header.step}",
                    f"{one.header.saved_at:%Y-%m-%d %H:%M} UTC",
                    "keep" if one.keep else "drop",
                    ", ".join(one.reasons),
                )
                for one in listed[:_SHOWN]
            ],
            left_out=max(0, len(listed) - _SHOWN),
            problem=none,
            previews=True,
        )

    def _forget(self, given: Given, who: str) -> str:
        runs, rules, _ = self._retention(given)
        manager = self._site.manager
        decisions, _ = plan_forget(manager, runs, rules, "page")
        for _ in bulk.forget(manager.reader, manager.retention, decisions):
            pass
        return _page_of(given["id"]) if given.get("id") else "/storage"

    # Verify, resume, demo

    def _ask_verify(self, given: Given) -> ActionPlan:
        run = self._run(given)
        verdict = verify_run(self._site.manager.reader, run)
        sound = f"All {verdict.records:,} records were opened, every state was rebuilt: sound."
        return ActionPlan(
            title=f"Verification of {run.run_id}",
            what=[sound] if verdict else ["It is damaged:", *verdict.problems],
            command=shlex.join(["holdfast", "verify", "--read-data", run.run_id]),
            python=f"manager.verify({run.run_id!r})",
            button="",
            problem="holdfast repair --dry-run shows what can be repaired" if not verdict else "",
        )

    def _ask_resume(self, given: Given) -> ActionPlan:
        run = self._run(given)
        entry, problem = self._entry(run)
        said, refused = _explained(self._site, run.run_id)
        words = ["holdfast", "resume", run.run_id, "--yes"]
        name = entry.partition(":")[2] or "graph"
        return ActionPlan(
            title=f"Resume {run.run_id}",
            what=[
                *said,
                *([f"A new process on this machine imports {entry}."] if entry else []),
            ],
            command=shlex.join(words),
            python=f"{name}.resume_sync({run.run_id!r})",
            button="Resume",
            hidden={"id": run.run_id},
            problem=problem or refused,
        )

    def _entry(self, run: RunInfo) -> tuple[str, str]:
        """The code that executes a run, or the reason why it cannot be resumed here."""
        if not self._resuming.possible:
            return "", "This page does not know the storage's address: use the command."
        entry = self._site.graphs.get(run.name) or recorded_entry(self._site.manager, run)
        if entry == "":
            return "", "This is a LangGraph thread: graph.invoke(None, config) resumes it."
        if entry is None:
            return "", (
                "The run does not record which graph or agent executes it: name it in [graphs] of"
                " holdfast.toml, or start the program that began it again."
            )
        return entry, ""

    def _resume(self, given: Given, who: str) -> str:
        run = self._run(given)
        entry, problem = self._entry(run)
        if problem:
            raise UsageError(problem)
        self._resuming.start(run.run_id, entry)
        return _page_of(run.run_id)

    def _ask_demo(self, given: Given) -> ActionPlan:
        return ActionPlan(
            title="Load the demonstration",
            what=["Four runs of one graph are made here: completed, failed, waiting, forked."],
            command="holdfast demo",
            python="# only as a command",
            button="Load the demonstration",
        )

    def _demo(self, given: Given, who: str) -> str:
        manager = self._site.manager
        if any(manager.storage.runs(RunQuery(limit=1))):
            raise UsageError("there are runs already", hint="the demonstration wants a new storage")
        make_runs(manager)
        return "/"


def _outcome(one: Waiting, given: Given) -> dict[str, Any]:
    """The arguments of `holdfast.answer` that a form stands for."""
    how, text = given.get("how", ""), given.get("value", "")
    if one.kind == "effect":
        if how == "repeat":
            return {"repeat": True}
        if how == "failed":
            return {"error": text or "it failed"}
        if how == "happened":
            return {"value": read_value(text)}
        raise UsageError(f"an effect has no outcome {how!r}", hint="happened, failed or repeat")
    if one.kind == "timer":
        raise UsageError(f"{one.id} waits for a time", hint="it ends by itself")
    if how == "approve":
        value: Any = True
    elif how == "reject":
        value = {"approved": False, "reason": text} if text else False
    elif how == "answer":
        value = read_value(text)
    else:
        raise UsageError(f"there is no answer {how!r}", hint="approve, reject or answer")
    check_fits(one.id, value, one.schema)
    return {"value": value}


def _explained(site: Site, run_id: str) -> tuple[list[str], str]:
    """Describe a resume, line by line, and the reason if it is not possible now."""
    try:
        plan = explain(site.manager.reader, None, run_id)
    except HoldfastError as error:
        return [], str(error)
    return str(plan).splitlines(), plan.problem


def _cleanup(given: Given, rules: Mapping[str, Any]) -> str:
    """Retention as a line of Python."""
    name = given.get("id") or given.get("name") or "NAME"
    manager = f"CheckpointManager(storage, retention=Rules.from_mapping({rules!r}))"
    return f"{manager}.cleanup_old_checkpoints({name!r})"


def _page_of(run_id: str, at: int | None = None) -> str:
    return f"/run?{urlencode({'id': run_id} | ({'at': at} if at is not None else {}))}"


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}
