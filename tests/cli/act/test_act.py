"""The commands that act: resume, fork, tag, pin, pending, approve, reject, answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.cli.conftest import Surehold, call

import surehold
from surehold import CheckpointManager, State
from surehold.demo.graph import OFFLINE
from surehold.doors.resume.entry_points import load_resumable

PROGRAM = """
import sys
from surehold import CheckpointConfig, GraphConfig, State, StateGraph, effect, interrupt

STORE = "sqlite:///app.db"


async def pay(state):
    receipt = await effect("pay", charge, 5)
    return {"receipt": receipt}


async def charge(amount):
    if "die" in sys.argv:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return {"paid": amount}


async def ask(state):
    return {"agreed": await interrupt("Agree?", schema=bool)}


config = CheckpointConfig(store=STORE, interval=1, preserve=True)
graph = StateGraph(GraphConfig(name="shop", checkpoint=config))
graph.add_node("pay", pay)
graph.add_node("ask", ask)
graph.add_edge("pay", "ask")
graph.set_entry_point("pay")
graph.set_exit_point("ask")

if __name__ == "__main__":
    graph.execute_sync(State.new({}, run_id="order"))
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with a graph, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_app.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    return tmp_path


def start(shop: Path, *words: str) -> int:
    program = [sys.executable, "shop_app.py", *words]
    return subprocess.run(program, cwd=shop, capture_output=True, check=False).returncode


def on_shop(*words: str, **options: str) -> tuple[int, str, str]:
    result = call("-s", "sqlite:///app.db", *words, **options)
    return result.code, result.out, result.err


def test_a_run_is_resumed_by_the_entry_point_that_it_recorded(shop: Path) -> None:
    assert start(shop) == 1  # parked
    code, out, err = on_shop("resume", "order", "--yes")
    assert code == 20 and "waits for an answer: ask@2: Agree?" in err
    assert on_shop("approve", "order")[0] == 0
    code, out, err = on_shop("resume", "order", "--yes")
    assert (code, out) == (0, "order completed at step 2\n")
    assert "skipped: pay" in err
    code, out, err = on_shop("resume", "order", "--yes")
    assert code == 0 and "nothing runs" in err


def test_a_resume_tells_what_it_does_and_a_dry_run_what_it_would_do(shop: Path) -> None:
    start(shop, "die")
    told = on_shop("resume", "order", "--dry-run")[2]
    assert "run order would continue after step 0 with node 'pay'" in told
    assert "the run would wait until someone says what happened" in told
    code, _, told = on_shop("resume", "order", "--yes")
    assert code == 20 and "would" not in told
    assert "run order continues after step 0 with node 'pay'" in told
    assert "the run waits until someone says what happened" in told


def test_a_resume_of_a_run_that_waits_says_so(shop: Path) -> None:
    start(shop)
    assert "run order waits after step 1 at node 'ask'" in on_shop("resume", "order", "--yes")[2]
    for words, does in (["--dry-run"], "would be"), (["--yes"], "is"):
        told = on_shop("resume", "order@0", *words)[2]
        assert f"run order {does} rewound from step 1 to step 0" in told


def test_a_workflow_that_fails_again_is_no_defect_of_ours(shop: Path) -> None:
    (shop / "flow_app.py").write_text(
        "import surehold\n"
        "@surehold.workflow\n"
        "def flow() -> None:\n"
        "    surehold.now()\n"
        "    raise TimeoutError('no reply')\n"
    )
    run = "import flow_app; flow_app.flow.run(run_id='f', storage='sqlite:///app.db')"
    subprocess.run([sys.executable, "-c", run], cwd=shop, capture_output=True, check=False)
    code, _out, err = on_shop("resume", "f", "--yes")
    assert code == 1
    assert "run 'f' failed: TimeoutError: no reply (surehold show f" in err
    assert "defect" not in err


def test_a_workflow_whose_code_changed_says_what_helps(shop: Path) -> None:
    code = """
import surehold

@surehold.step(in_doubt="retry")
def {step}() -> str:
    return "done"

@surehold.workflow
def job() -> str:
    {step}()
    return surehold.wait_for("approval")
"""
    Path("job_before.py").write_text(code.format(step="fetch"))
    Path("job_after.py").write_text(code.format(step="load"))
    program = (
        "import job_before; job_before.job.run(run_id='r', storage='sqlite:///app.db', wait=False)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=shop, check=True)
    on_shop("answer", "r", "Ann")
    exit_code, _out, err = on_shop("resume", "r", "--entry", "job_after:job")
    assert exit_code == 8 and "the code now calls 'load' there" in err
    assert "patched(" in err and "--force" not in err


def test_a_module_that_fails_on_import_is_named(shop: Path) -> None:
    assert start(shop) == 1  # parked
    (shop / "shop_app.py").write_text("nothing_of_that_name()")
    code, _out, err = on_shop("resume", "order", "--yes")
    assert code == 1
    assert "failed while it was imported: NameError" in err and "import shop_app" in err


def test_a_dry_run_of_a_resume_imports_nothing(shop: Path) -> None:
    start(shop)
    for words in ([], ["--entry", "shop_app:graph"], ["--entry", "no_such_module:graph"]):
        code, out, err = on_shop("resume", "order", "--dry-run", *words)
        where = words[-1] if words else "shop_app:graph"
        assert (code, out) == (0, "") and f"would import {where}" in err
        assert "would continue after step 1 with node 'ask'" in err
        assert "waits for an answer: ask@2: Agree?" in err
    (shop / "surehold.toml").write_text('[graphs]\nshop = "shop_app:graph"\n')
    document = call("-s", "sqlite:///app.db", "resume", "order", "-n", "--json").json()
    assert (document["outcome"], document["entry_point"]) == ("planned", "shop_app:graph")
    assert "shop_app" not in sys.modules


def test_nothing_is_imported_because_a_journal_says_so_unless_someone_agrees(shop: Path) -> None:
    start(shop)
    code, _, err = on_shop("resume", "order")
    assert code == 6 and "asks to import shop_app:graph" in err
    assert on_shop("resume", "order", typed="n\n")[0] == 6
    assert "shop_app" not in sys.modules
    assert on_shop("resume", "order", typed="y\n")[0] == 20
    assert "shop_app" in sys.modules


def test_the_graph_can_be_named_on_the_command_line_or_in_the_settings(
    shop: Path, on: Surehold
) -> None:
    start(shop)
    assert on_shop("resume", "order", "--entry", "shop_app:graph")[0] == 20
    (shop / "surehold.toml").write_text('[graphs]\nshop = "shop_app:graph"\n')
    assert on_shop("resume", "order")[0] == 20
    assert on_shop("resume", "order", "--entry", "shop_app:nothing")[0] == 2
    assert on_shop("resume", "order", "--entry", "shop-app")[0] == 2
    assert on_shop("resume", "order", "--entry", "no_such_module:graph")[0] == 4


FLEET = """
from pathlib import Path
from tests.builders.fleets import Flaky, manager, team
from surehold.agents.fleet.fleet import Fleet

crew = team(Path("calls"))
crew["coder"] = Flaky(crew["coder"], fails=0 if Path("mended").exists() else 9, when=lambda _: True)
fleet = Fleet(manager(3), crew, "sqlite:///fleet.db")
"""


def test_a_fleets_run_is_resumed_by_its_graph(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop / "fleet_app.py").write_text(FLEET)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    start_it = "import asyncio, fleet_app\nasyncio.run(fleet_app.fleet.run('Go'))\n"
    paths = os.pathsep.join(["", str(Path(__file__).parents[3])])
    failed = subprocess.run(
        [sys.executable, "-c", start_it],
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1, failed.stderr
    (shop / "mended").touch()
    run = ["-s", "sqlite:///fleet.db", "resume", "latest", "--entry", "fleet_app:fleet"]
    result = call(*run, "--json")
    assert result.code == 0, result.err
    assert result.json()["status"] == "completed"


def test_a_completed_loop_has_nothing_to_resume(on: Surehold) -> None:
    result = on("resume", "crawl", "--yes")
    assert result.code == 2
    assert "nothing to resume" in result.err and "surehold fork crawl" in result.err


def test_a_run_whose_code_is_not_known_says_how_to_name_it(
    on: Surehold, manager: CheckpointManager
) -> None:
    manager.save_checkpoint(State.new({"n": 1}, run_id="by-hand"))
    result = on("resume", "by-hand", "--yes")
    assert result.code == 2
    assert "--entry module:graph" in result.err


def test_a_dry_run_of_a_resume_executes_nothing(on: Surehold, manager: CheckpointManager) -> None:
    before = manager.reader.run("report-wed")
    result = on("resume", "report-wed", "--yes", "--dry-run", "--json")
    document = result.json()
    assert document["outcome"] == "planned"
    assert document["entry_point"] == "surehold.demo.graph:graph"
    assert "with node 'approve'" in document["plan"]
    assert manager.reader.run("report-wed") == before


@pytest.mark.parametrize("address", ["report-wed@3", "report-wed~{back}", "{id}"])
def test_a_run_is_taken_back_to_a_checkpoint(on: Surehold, address: str) -> None:
    assert on("approve", "report-wed").code == 0
    assert on("resume", "report-wed", "--yes").code == 0
    before = on("log", "report-wed", "--all", "--json").json()["checkpoints"]
    back, there = next((n, row) for n, row in enumerate(before) if row["step"] == 3)
    result = on("resume", address.format(back=back, id=there["checkpoint_id"]), "--yes")
    assert (result.code, result.out) == (0, "report-wed completed at step 6\n")
    assert "rewound from step 6 to step 3" in result.err
    after = on("log", "report-wed", "--all", "--json").json()["checkpoints"]
    assert [row["step"] for row in after[: len(after) - len(before)]] == [6, 5, 4, 3]


def test_a_failed_node_is_told_and_exits_with_1(on: Surehold) -> None:
    outage = OFFLINE.set(True)
    result = on("resume", "report-tue", "--yes")
    OFFLINE.reset(outage)
    assert result.code == 1
    assert "search.example is not reachable" in result.err
    assert "Traceback" not in result.err


def test_an_effect_in_doubt_waits_until_someone_says_what_became_of_it(shop: Path) -> None:
    assert start(shop, "die") == -9
    code, out, _ = on_shop("pending")
    assert code == 0 and "effect in doubt" in out and "pay@1" in out
    code, _, err = on_shop("approve", "order")
    assert code == 2 and "yes or no does not state its outcome" in err
    assert on_shop("answer", "order")[0] == 2
    assert on_shop("answer", "order", '{"paid": 5}')[0] == 0
    code, _, err = on_shop("resume", "order", "--yes")
    assert code == 20 and "Agree?" in err
    code, out, _ = on_shop("cat", "order:state.receipt.paid")
    assert (code, out) == (0, "5\n")


@pytest.mark.parametrize(
    ("words", "outcome"),
    [(["--repeat"], "repeat"), (["--error", "card refused"], "failed"), (["7"], "happened")],
)
def test_an_effects_outcome_is_told(shop: Path, words: list[str], outcome: str) -> None:
    start(shop, "die")
    result = call("-s", "sqlite:///app.db", "answer", "order", *words, "--json")
    assert result.json()["outcome"] == outcome
    assert call("-s", "sqlite:///app.db", "pending", "--json").json()["pending"] == []


def test_an_effect_is_not_answered_by_yes_or_no(shop: Path) -> None:
    start(shop, "die")
    choices = (
        "it happened: surehold answer order VALUE, with what it returned;"
        " it did not: surehold answer order --repeat;"
        " it failed: surehold answer order --error TEXT"
    )
    _, out, err = on_shop("pending")
    assert choices in err and "pay(amount=5) at step 1, node pay" in out
    code, _, err = on_shop("resume", "order", "--yes")
    assert code == 20 and choices in err
    for words in (
        ["answer", "order", "true"],
        ["answer", "order", "false"],
        ["approve", "order", "pay"],
        ["reject", "order", "pay@1"],
        ["reject", "order", "pay", "--reason", "no"],
    ):
        code, _, err = on_shop(*words)
        assert code == 2 and choices in err
    assert on_shop("answer", "order", "false", "--yes")[0] == 0
    assert on_shop("pending")[2] == "nothing waits\n"


def test_pending_follows_until_it_is_stopped(shop: Path) -> None:
    start(shop, "die")
    command = [sys.executable, "-m", "surehold", "-s", "sqlite:///app.db", "pending", "--follow"]
    with subprocess.Popen([*command, "--jsonl"], stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        (waiting,) = json.loads(follower.stdout.readline())["pending"]
        assert waiting["run_id"] == "order"
        assert on_shop("answer", "order", "7")[0] == 0
        assert json.loads(follower.stdout.readline())["pending"] == []
        follower.send_signal(signal.SIGINT)
        assert follower.wait(300) == 130
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert "UTC  nothing waits" in follower.stdout.readline()
        follower.kill()


def test_pending_lists_questions_with_what_they_expect(on: Surehold) -> None:
    (waiting,) = on("pending", "--json").json()["pending"]
    assert (waiting["run_id"], waiting["id"]) == ("report-wed", "approve@6")
    assert waiting["question"] == "Publish the report on lichen?"
    assert waiting["schema"] == {"type": "boolean"}
    assert on("pending", "crawl").err == "nothing waits\n"
    for words, what in (
        (["answer", "crawl", "1"], "nothing"),
        (["answer", "crawl", "1", "--id", "ask"], "nothing named ask"),
        (["answer", "crawl", "ask", "1"], "nothing named ask"),
        (["approve", "crawl"], "nothing"),
        (["approve", "crawl", "ask"], "nothing named ask"),
    ):
        told = on(*words)
        assert told.code == 4 and f"run 'crawl' waits for {what} (" in told.err


@pytest.mark.parametrize(("command", "value"), [("approve", True), ("reject", False)])
def test_a_question_is_answered_yes_or_no(on: Surehold, command: str, value: bool) -> None:
    document = on(command, "report-wed", "--json").json()
    assert (document["outcome"], document["value"]) == ("answered", value)
    assert on(command, "report-wed").code == 4
    assert on("resume", "report-wed", "--yes").code == 0
    assert on("cat", "report-wed:state.approved").out == f"{str(value).lower()}\n"


def test_an_answer_that_does_not_fit_is_refused_before_it_is_written(on: Surehold) -> None:
    wrong = on("answer", "report-wed", "True")
    assert wrong.code == 2 and "it expects true or false" in wrong.err
    assert "surehold approve report-wed says true" in wrong.err
    wrong = on("reject", "report-wed", "--reason", "no")
    assert wrong.code == 2 and "it expects true or false" in wrong.err
    assert "surehold reject report-wed without --reason" in wrong.err
    assert "approve" not in wrong.err.partition("(")[2]
    assert len(on("pending", "--json").json()["pending"]) == 1


def test_a_refused_no_suggests_what_the_question_accepts(tmp_path: Path) -> None:
    @surehold.workflow
    async def choose() -> Any:
        return await surehold.interrupt("which?", schema=Literal["a", "b"])

    @surehold.step(in_doubt="ask")
    def pay() -> None:
        raise surehold.errors.InDoubtError("no reply")

    @surehold.workflow
    def shop() -> None:
        pay()

    url = f"sqlite:///{tmp_path}/runs.db"
    asyncio.run(choose.run(run_id="choose-1", storage=url))
    for words in (["--reason", "no"], []):
        wrong = call("-s", url, "reject", "choose-1", *words)
        assert wrong.code == 2 and "surehold answer choose-1 VALUE" in wrong.err
        assert "without --reason" not in wrong.err
    settled = call("-s", url, "answer", "choose-1", "a")
    assert "to continue: start its program again" in settled.err, "no module has it"
    with contextlib.suppress(surehold.errors.InDoubtError):
        shop.run(run_id="shop-1", storage=url)
    shown = call("-s", url, "pending").out
    assert "pay at step" in shown and "node" not in shown


def test_a_fork_begins_with_other_values(on: Surehold) -> None:
    result = on("fork", "report-mon@3", "--set", "topic=lichen", "--as", "other", "--json")
    document = result.json()
    assert (document["run_id"], document["step"], document["changed"]) == ("other", 3, ["topic"])
    assert document["forked_from"]["run_id"] == "report-mon"
    assert on("cat", "other:state.topic").out == "lichen\n"
    assert on("cat", "report-mon:state.topic").out == "kelp\n"
    assert on("resume", "other", "--yes").code == 20
    assert "grows a millimetre a year" in on("show", "other").out


def test_a_fork_of_a_run_without_a_graph(on: Surehold) -> None:
    assert on("fork", "crawl@2", "--set", "pages=[1, 2]", "--as", "again").code == 0
    assert on("cat", "again:state.pages", "--json").json()["value"] == [1, 2]
    assert on("fork", "crawl@2", "--as", "again").code == 2
    assert on("fork", "crawl@2", "--set", "pages").code == 2
    assert on("fork", "report-mon").code == 2  # it ends its run


def test_tags_are_given_and_taken(on: Surehold) -> None:
    document = on("tag", "crawl@2", "good", "seen", "--json").json()
    assert document["tags"] == ["good", "seen"]
    assert on("show", "tag:seen", "--json").json()["checkpoint"]["step"] == 2
    assert on("tag", "crawl@2", "--remove", "seen", "--json").json()["tags"] == ["good"]
    assert on("show", "tag:seen").code == 4
    assert on("tag", "crawl@2").code == 2


def test_a_tag_that_is_not_there_cannot_be_removed(on: Surehold) -> None:
    on("tag", "crawl@2", "good")
    refused = on("tag", "crawl@2", "more", "--remove", "nope")
    assert refused.code == 4 and "crawl@2 has no tag 'nope' (it has good)" in refused.err
    assert on("show", "crawl@2", "--json").json()["checkpoint"]["tags"] == ["good"]


def test_a_pinned_checkpoint_is_kept(on: Surehold) -> None:
    assert on("pin", "crawl@2").out == "crawl@2 pinned\n"
    kept = on("forget", "crawl", "--keep-last", "1", "-n", "--json").json()["decisions"]
    assert [row["step"] for row in kept if row["keep"]] == [5, 2]
    assert on("pin", "crawl@2", "--remove").out == "crawl@2 no marks\n"


def test_a_held_run_can_be_tagged_but_not_answered(on: Surehold, database: Path) -> None:
    script = (
        "import os, sys\n"
        "from surehold import CheckpointManager\n"
        "from surehold.engine.leases import RunLease\n"
        "manager = CheckpointManager(os.environ['WHERE'])\n"
        "RunLease(manager.face.journal, 'report-wed').acquire()\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    where = os.environ | {"WHERE": f"sqlite:///{database}"}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=where,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        assert on("tag", "report-wed", "x").code == 0
        result = on("resume", "report-wed@3", "--yes")
        assert result.code == 5
        assert "surehold watch report-wed" in result.err
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.wait(300)


def test_an_entry_point_is_only_a_graph_that_is_a_variable(manager: CheckpointManager) -> None:
    assert load_resumable("surehold.demo.graph:graph").name == "report"
    newest = manager.reader.run("crawl")
    assert newest is not None
    header = manager.reader.newest(newest)
    assert header is not None
    assert "entry_point" not in manager.reader.load(header).extra
    assert manager.save_checkpoint(State.new({"n": 1}, run_id="plain"))
