"""The commands that move: export, import, copy, migrate."""

from __future__ import annotations

import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.cli.conftest import Surehold, call

import surehold
from surehold import CheckpointManager, State
from surehold.core.state.migration import Migrations, migrations


def test_a_run_goes_to_a_file_and_comes_back_as_it_was(on: Surehold, tmp_path: Path) -> None:
    result = on("export", "report-mon", "-o", "mon.surehold")
    assert (result.code, result.out.split()[0]) == (0, "mon.surehold")
    other = f"sqlite:///{tmp_path}/other.db"
    taken = call("-s", other, "import", "mon.surehold", "--json")
    assert taken.json()["run_id"] == "report-mon"
    for words in (["show", "report-mon@3"], ["log", "report-mon"], ["diff", "report-mon@2"]):
        assert call("-s", other, *words).out == on(*words).out
    again = call("-s", other, "import", "mon.surehold")
    assert again.code == 5 and "--skip-existing" in again.err
    assert call("-s", other, "import", "mon.surehold", "--skip-existing").code == 0
    assert call("-s", other, "import", "mon.surehold", "--as", "copy").code == 0
    assert call("-s", other, "cat", "copy:state.topic").out == "kelp\n"


def test_an_export_replaces_no_file_unless_told(on: Surehold, tmp_path: Path) -> None:
    for words in ([], ["--html"], ["--json"]):
        (tmp_path / "there").write_text("mine")
        refused = on("export", "crawl", "-o", "there", *words)
        assert refused.code == 5 and "--overwrite" in refused.err
        assert (tmp_path / "there").read_text() == "mine"
        assert on("export", "crawl", "-o", "there", "--overwrite", *words).code == 0
        assert (tmp_path / "there").read_text(errors="replace") != "mine"
        assert (tmp_path / "there").stat().st_mode & 0o077 == 0


def test_a_hyphen_is_stdout_and_no_file(on: Surehold, tmp_path: Path) -> None:
    refused = on("export", "crawl", "-o", "-")
    assert refused.code == 2 and "-o crawl.surehold" in refused.err
    for words in (["--html"], ["--json"]):
        assert on("export", "crawl", "-o", "-", *words).out == on("export", "crawl", *words).out
    assert not (tmp_path / "-").exists()


def test_the_file_is_named_by_the_run_where_no_name_is_given(
    on: Surehold, manager: CheckpointManager, tmp_path: Path
) -> None:
    manager.save_checkpoint(State.new({"n": 1}, run_id="../evil"))
    assert on("export", "../evil").code == 0
    assert on("export", "crawl").out.startswith("crawl.surehold")
    assert not list(tmp_path.parent.glob("*evil*"))


@pytest.mark.parametrize(
    ("style", "key"), [("agent", "agent_id"), ("graph", "checkpoint_node"), ("fleet", "context")]
)
def test_json_is_in_the_form_that_is_asked_for(on: Surehold, style: str, key: str) -> None:
    rows = json.loads(on("export", "report-mon", "--json", "--style", style).out)
    assert len(rows) == 8 and all(key in row for row in rows)
    assert on("export", "report-mon", "--json", "--style", "baroque").code == 2


def test_secrets_can_be_left_out_of_a_file(
    on: Surehold, manager: CheckpointManager, tmp_path: Path
) -> None:
    manager.save_checkpoint(State.new({"password": "hunter2hunter2"}, run_id="leaky"))
    assert on("export", "leaky", "--redact").code == 0
    assert call("-s", "sqlite:///new.db", "import", "leaky.surehold").code == 0
    assert "hunter2" not in call("-s", "sqlite:///new.db", "show", "leaky").out
    assert on("export", "leaky", "--redact", "--html").code == 2


class Reader(HTMLParser):
    """Takes a page apart."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "data") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")
            assert not name.startswith("on"), name

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_holds_timeline_states_and_diffs_and_fetches_nothing(on: Surehold) -> None:
    page = on("export", "report-mon", "--html").out
    reader = Reader()
    reader.feed(page)
    assert reader.outside == []
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert page.count('class="detail panel') == page.count("<summary>State") == 8
    assert page.count('class="slot') == 7  # from each checkpoint to the next
    assert page.count('class="node visited') == 4
    assert "kelp is a brown alga" in reader.text and "$0.011" in reader.text
    assert "url(" not in page.replace("url(#arrow)", "")
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'; style-src 'sha256-" in page


def test_a_page_of_a_long_run_is_in_pages(on: Surehold, manager: CheckpointManager) -> None:
    with surehold.run("long", storage=manager) as run:
        for n in range(120):
            run.checkpoint(node="read", n=n)
    page = on("export", "long", "--html").out
    assert page.count('class="split page') == 3
    assert page.count('class="detail panel') == 121
    assert page.count('href="#p') == 3


def test_what_is_stored_is_text_on_a_page(on: Surehold, manager: CheckpointManager) -> None:
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m"
    state = State.new({evil: evil, "long": [evil] * 9}, run_id="evil", name=evil)
    manager.save_checkpoint(state.at(step=1, node=evil, tags=[evil], metadata={evil: evil}))
    page = on("export", "evil", "--html").out
    reader = Reader()
    reader.feed(page)
    assert not {"script", "img"} & set(reader.tags)
    assert "\x1b" not in page
    assert html.escape("<script>alert(1)</script>") in page


def test_a_copy_is_brought_up_to_date_and_no_more(on: Surehold, tmp_path: Path) -> None:
    to = f"file:{tmp_path}/copies"
    first = on("copy", "--to", to, "--json").json()
    assert first["records"] > 30 and len(first["runs"]) == 5
    assert on("copy", "--to", to, "--json").json()["records"] == 0
    on("tag", "crawl", "new")
    # The tag and who set it.
    assert on("copy", "crawl", "--to", to, "--json").json()["records"] == 2
    assert call("-s", to, "verify", "--read-data").code == 0
    assert call("-s", to, "log", "report-mon", "-g").out == on("log", "report-mon", "-g").out
    ids = [run["run_id"] for run in call("-s", to, "runs", "--json").json()["runs"]]
    assert ids == [run["run_id"] for run in on("runs", "--json").json()["runs"]]
    assert on("copy").code == 2


def test_a_copy_that_went_its_own_way_is_told_and_the_rest_goes_on(
    on: Surehold, tmp_path: Path
) -> None:
    to = f"sqlite:///{tmp_path}/copy.db"
    on("copy", "crawl", "report-tue", "--to", to)
    call("-s", to, "tag", "crawl", "theirs")
    on("tag", "crawl", "ours")
    on("tag", "report-tue", "ours")
    result = on("copy", "--to", to, "--json")
    assert result.code == 3
    told = {row["run_id"]: row for row in result.json()["runs"]}
    assert "differs from seq" in told["crawl"]["error"]
    assert told["report-tue"]["records"] == 2 and told["report-mon"]["records"] > 1


@pytest.fixture
def no_migrations(monkeypatch: pytest.MonkeyPatch) -> Migrations:
    monkeypatch.setattr(migrations, "by_name", {})
    return migrations


def test_runs_are_brought_to_the_newest_version(
    on: Surehold,
    manager: CheckpointManager,
    tmp_path: Path,
    no_migrations: Migrations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for run in ("p1", "p2"):
        manager.save_checkpoint(State.new({"full": "Ada L"}, run_id=run, name="person"))
    done = State.new({"full": "Ada L"}, run_id="p3", name="person").at(status="completed")
    manager.save_checkpoint(done)
    (tmp_path / "upgrades_here.py").write_text(
        "import surehold\n"
        "surehold.migrations.register('person', 0, 1, lambda s: {'names': s['full'].split()})\n"
        "surehold.migrations.register('report', 5, 6, lambda s: s)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    planned = on("migrate", "--import", "upgrades_here", "-n", "--json")
    outcomes = {row["run_id"]: row["outcome"] for row in planned.json()["runs"]}
    assert (outcomes["p1"], outcomes["p3"], outcomes["crawl"]) == (
        *("would migrate", "completed", "current"),
    )
    assert outcomes["report-wed"] == "stuck" and planned.code == 8
    done_now = on("migrate", "p1", "p2", "--json").json()
    assert {row["outcome"] for row in done_now["runs"]} == {"migrated"}
    assert on("migrate", "p1", "--json").json()["runs"][0]["outcome"] == "current"
    assert on("migrate", "p1").out == "1 of 1 run has the newest version\n"
    assert on("migrate", "p1", "p2").out == "2 of 2 runs have the newest version\n"
    no_migrations.by_name.clear()
    assert on("cat", "p1:state.names[0]").out == "Ada\n"
    assert on("migrate", "--import", "no_such_module").code == 2


def test_what_a_run_waits_for_is_still_open_after_it_was_migrated(
    on: Surehold, no_migrations: Migrations
) -> None:
    no_migrations.register("report", 0, 1, lambda state: {**state, "version": 1})
    row = on("migrate", "report-wed", "--json").json()["runs"][0]
    assert row["outcome"] == "migrated"
    (waiting,) = on("pending", "--json").json()["pending"]
    assert waiting["id"] == "approve@6"
    assert on("cat", "report-wed:state.version").out == "1\n"
    assert on("approve", "report-wed").code == 0
    no_migrations.by_name.clear()
    shown = on("resume", "report-wed", "--yes", "--dry-run", "--json").json()
    assert re.search("after step 5 with node 'approve'", shown["plan"])


def test_a_file_that_is_not_there_makes_no_storage(tmp_path: Path) -> None:
    done = call("import", str(tmp_path / "gone.json"), "-s", f"sqlite:///{tmp_path / 'new.db'}")
    assert done.code != 0
    assert "there is no file" in done.err
    assert not (tmp_path / "new.db").exists()


def test_a_directory_of_another_systems_checkpoint_files_is_imported(tmp_path: Path) -> None:
    files, db = tmp_path / "checkpoints", f"sqlite:///{tmp_path}/runs.db"
    files.mkdir()
    for step in (1, 2):
        saved = {"checkpoint_id": f"ckpt_{step}", "agent_id": "researcher", "step_number": step}
        saved["timestamp"] = f"2026-11-16T10:0{step}:00"
        (files / f"ckpt_{step}.jsonl").write_text(json.dumps(saved))
    done = call("-s", db, "import", str(files), "--json")
    assert (done.code, done.json()["run_id"], done.json()["checkpoints"]) == (0, "researcher", 2)
    assert call("-s", db, "import", str(files)).code == 5
    assert "--as names one run" in call("-s", db, "import", str(files), "--as", "x").err
    (files / "bad.json").write_text("{")
    assert call("-s", f"sqlite:///{tmp_path}/b.db", "import", str(files)).code == 7


def test_every_command_reads_an_exported_file_in_place(on: Surehold) -> None:
    on("export", "report-mon", "-o", "mon.surehold")
    before = Path("mon.surehold").read_bytes()
    assert call("-s", "mon.surehold", "log", "report-mon").out == on("log", "report-mon").out
    rows = call("-s", "mon.surehold", "runs", "--json").json()["runs"]
    assert [row["run_id"] for row in rows] == ["report-mon"]
    assert call("-s", "mon.surehold", "verify").code == 0
    assert Path("mon.surehold").read_bytes() == before
    assert "sqlite:///none.surehold" in call("-s", "none.surehold", "runs").err
    assert not Path("none.surehold").exists()


def test_what_is_no_export_is_refused_with_what_to_do_instead(on: Surehold, database: Path) -> None:
    result = on("import", str(database))
    assert result.code == 7 and "is a storage, but not of one run" in result.err
    assert f"surehold -s sqlite:///{database} copy --to URL" in result.err
    Path("empty").mkdir()
    assert "(looked for *.jsonl, *.jsonl.gz, *.json)" in on("import", "empty").err
