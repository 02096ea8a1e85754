"""The actions that continue a run: resume, or rewind to a checkpoint first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from threading import Lock

import msgspec

from surehold.core.records import Header
from surehold.doors.resume import IN_DOUBT, ResumePlan, explain
from surehold.engine.runs import Waiting, note_action
from surehold.errors import ConflictError, SureholdError, UsageError
from surehold.storage.base import RunInfo, RunQuery
from surehold.views.run import spending
from surehold.views.waiting import recorded_entry, rewind_text
from surehold.views.words import money, span
from surehold.web.actions.plan import (
    Action,
    ActionPlan,
    checkpoint_in,
    page_of,
    run_in,
    shell,
)
from surehold.web.drawing import GraphDrawing, graph_of_resume
from surehold.web.forms import Given
from surehold.web.site import Site

_LISTED = 60


class ResumeProcesses:
    """Starts ``surehold resume``. User code never runs in the page's process."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = Lock()

    @property
    def possible(self) -> bool:
        """True if another process can open the storage."""
        return bool(self._address) and not self._address.startswith("memory")

    def start(self, run_id: str, entry: str, target: str) -> None:
        """Start the process; its outcome is in the journal, its output on our stderr.

        The address is handed over in the environment: it may hold a password.
        """
        with self._lock:
            alive = {k: p for k, p in self._started.items() if p.poll() is None}
            self._started = alive
            if run_id in alive:
                raise ConflictError(
                    f"run {run_id!r} is being resumed by process {alive[run_id].pid}", run_id=run_id
                )
            words = ["resume", "--yes", "--entry", entry, "--", target]
            alive[run_id] = subprocess.Popen(
                [sys.executable, "-m", "surehold", *words],
                env={**os.environ, "SUREHOLD_STORAGE": self._address},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
            )


class Likely(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a resume probably executes."""

    nodes: list[str] = []
    prices: dict[str, str] = {}
    said: list[str] = []


class ResumeAction(Action):
    """Continues a run from its newest checkpoint."""

    def __init__(self, site: Site, processes: ResumeProcesses) -> None:
        super().__init__(site)
        self._processes = processes

    def ask(self, given: Given) -> ActionPlan:
        run = run_in(self._site, given)
        entry, problem = self.entry_of(run)
        try:
            plan = explain(self._site.manager.reader, None, run.run_id)
        except SureholdError as error:
            return self._plan(run, entry, [], [], problem or str(error))
        likely = self._likely(run, plan)
        saved = plan.saves
        spent = f"{span(saved.seconds)}, {saved.tokens:,} tokens, {money(saved.dollars) or '$0'}"
        first = plan.tell().splitlines()[0].removeprefix(f"run {run.run_id} ")
        said = [f"It {first}.", *likely.said, f"It does not repeat {spent} of recorded work."]
        made = self._plan(run, entry, said, self._rows(plan, likely), problem or plan.problem)
        return msgspec.structs.replace(made, picture=self._picture(run, plan, likely))

    def _picture(self, run: RunInfo, plan: ResumePlan, likely: Likely) -> GraphDrawing | None:
        newest = self._site.manager.reader.newest(run)
        if newest is None or plan.status == "completed":
            return None
        return graph_of_resume(self._site.manager, newest, likely.nodes, likely.prices)

    def _plan(
        self, run: RunInfo, entry: str, said: list[str], rows: list[tuple[str, ...]], problem: str
    ) -> ActionPlan:
        name = entry.partition(":")[2] or "graph"
        imports = [f"A new process on this machine imports {entry}."] if entry else []
        works = self.works_elsewhere(problem)
        return ActionPlan(
            title=f"Resume {run.run_id}",
            what=[*said, *imports],
            command=shell("resume", run.run_id, "--yes") if works else "",
            python=f"{name}.resume_sync({run.run_id!r})" if works else "",
            button="Resume",
            hidden={"id": run.run_id},
            heads=("What", "Which", "Then"),
            table=rows[:_LISTED],
            left_out=max(0, len(rows) - _LISTED),
            problem=problem,
            back=page_of(run.run_id),
        )

    def works_elsewhere(self, problem: str) -> bool:
        """True unless the command and the call would fail as well."""
        return not problem or not self._processes.possible

    def do(self, given: Given, who: str) -> str:
        run = run_in(self._site, given)
        self.start(run, run.run_id, "resumed it", who)
        return page_of(run.run_id)

    def start(self, run: RunInfo, target: str, did: str, who: str) -> None:
        """Note who it is, and start the process."""
        entry, problem = self.entry_of(run)
        if problem:
            raise UsageError(problem)
        note_action(self._site.manager, run.run_id, did, who, step=run.step)
        self._processes.start(run.run_id, entry, target)

    def entry_of(self, run: RunInfo) -> tuple[str, str]:
        """The code that executes a run, or the reason why it cannot be resumed here."""
        if not self._processes.possible:
            return "", "This page does not know the storage's address: use the command."
        entry = self._site.graphs.get(run.name) or recorded_entry(self._site.manager, run)
        if entry == "":
            return "", "This is a LangGraph thread: graph.invoke(None, config) resumes it."
        if entry is None:
            return "", (
                "The run does not record which graph or agent executes it: name it in [graphs] of"
                " surehold.toml, or start the program that began it again."
            )
        return entry, ""

    def _rows(self, plan: ResumePlan, likely: Likely) -> list[tuple[str, ...]]:
        """The calls that a resume executes, returns, asks and repeats."""
        rows: list[tuple[str, ...]] = []
        if plan.next and plan.status != "completed":
            rows.append(("step", plan.next, "runs first"))
        after = likely.nodes[likely.nodes[:1] == [plan.next] :]
        rows += [("step", node, "runs next, if it goes as the other run did") for node in after]
        rows += [("step", node, "runs again: it had begun") for node in plan.again]
        rows += [("inside", one, "continues") for one in plan.inside]
        rows += [("effect", one, "its recorded outcome is returned") for one in plan.reused]
        rows += [("effect", one.id, IN_DOUBT[one.policy][True]) for one in plan.in_doubt]
        rows += [(one.kind, one.id, _wait(one)) for one in plan.questions]
        rows += [
            ("step", f"{node} x{count}" if count > 1 else node, "is not executed again")
            for node, count in Counter(plan.skipped).items()
        ]
        return rows

    def _likely(self, run: RunInfo, plan: ResumePlan) -> Likely:
        """The later steps that a completed run of the name took, and their cost."""
        if plan.status == "completed" or not run.name:
            return Likely()
        storage = self._site.manager.storage
        query = RunQuery(name=run.name, status="completed", limit=1)
        other = next(iter(storage.runs(query)), None)
        if other is None:
            return Likely(said=["Its cost cannot be estimated: no run of this name is completed."])
        try:
            path = explain(self._site.manager.reader, None, other.run_id).skipped
        except SureholdError:
            path = ()
        left = [*path]
        for node in plan.skipped:
            if node in left:
                left.remove(node)
        if not left:
            return Likely()
        visits = Counter(path)
        costs = {one.node: one for one in spending(self._site.pasts.of(other), other.seq)}
        priced = [(costs[node], visits[node]) for node in left if node in costs]
        prices = {
            node: money(cost.dollars * left.count(node) / visits[node])
            for node, cost in costs.items()
            if node in left
        }
        dollars = sum(cost.dollars / times for cost, times in priced)
        tokens = sum(cost.tokens / times for cost, times in priced)
        said = f"Estimated cost: {money(dollars) or '$0'} and {tokens:,.0f} tokens"
        return Likely(
            nodes=left,
            prices={node: f"about {price}" for node, price in prices.items() if price},
            said=[f"{said}, as its {len(left)} remaining steps cost in {other.run_id}."],
        )


class RewindAction(Action):
    """Continues a run from an earlier checkpoint, which becomes its head."""

    def __init__(self, site: Site, resume: ResumeAction) -> None:
        super().__init__(site)
        self._resume = resume

    def ask(self, given: Given) -> ActionPlan:
        header = checkpoint_in(self._site, given)
        run = run_in(self._site, {"id": header.run_id})
        entry, problem = self._resume.entry_of(run)
        said: list[str] = []
        try:
            plan = explain(self._site.manager.reader, None, run.run_id)
            told = rewind_text(self._site.manager.storage, plan, header, now=False)
            said = [f"{told[:1].upper()}{told[1:]}."]
            problem = problem or _too_late(plan, header) or plan.problem
        except SureholdError as error:
            problem = problem or str(error)
        name = entry.partition(":")[2] or "graph"
        target = f"{run.run_id}@{header.step}"
        call = f"{name}.resume_sync({run.run_id!r}, checkpoint_id={header.id!r})"
        works = self._resume.works_elsewhere(problem)
        return ActionPlan(
            title=f"Rewind {run.run_id} to step {header.step}",
            what=[
                *said,
                "The records after that step stay in the journal, on an abandoned branch.",
                *([f"A new process on this machine imports {entry}."] if entry else []),
            ],
            command=shell("resume", target, "--yes") if works else "",
            python=call if works else "",
            button="Rewind and resume",
            hidden={"checkpoint": header.id},
            heads=("What", "Which", "Then"),
            table=[] if problem else self._rows(run, header),
            problem=problem,
            back=page_of(run.run_id, header.seq),
        )

    def do(self, given: Given, who: str) -> str:
        header = checkpoint_in(self._site, given)
        run = run_in(self._site, {"id": header.run_id})
        if header.scope:
            raise UsageError("the checkpoint is of a nested scope", hint="choose one of the run")
        did = f"rewound it to step {header.step}"
        self._resume.start(run, header.id, did, who)
        return page_of(run.run_id)

    def _rows(self, run: RunInfo, header: Header) -> list[tuple[str, ...]]:
        """The effects recorded after the checkpoint, whose outcomes are returned."""
        rows: dict[str, tuple[str, ...]] = {}
        reader = self._site.manager.reader
        for record in reader.records(run.run_id, header.seq + 1, run.seq):
            if record.header.frame == "note" and record.header.kind == "effect":
                try:
                    told = msgspec.json.decode(reader.sealer.open(record))
                except SureholdError:
                    continue
                rows[told["id"]] = ("effect", told["id"], "its recorded outcome is returned")
        return [*rows.values()][:_LISTED]


def _too_late(plan: ResumePlan, header: Header) -> str:
    if header.scope:
        return "This checkpoint is of a nested scope: choose one of the run itself."
    if header.id == plan.checkpoint_id:
        return "This is the newest checkpoint: resume the run instead."
    return ""


def _wait(one: Waiting) -> str:
    if one.until is not None:
        return f"is waited for until {one.until:%Y-%m-%d %H:%M:%S} UTC"
    return "is waited for"
