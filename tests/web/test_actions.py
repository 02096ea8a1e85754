"""Actions say what they do, do it once confirmed, and record who did it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.conftest import Browser, Open, in_doubt
from tests.web.test_pages import text_of

import surehold
from surehold import CheckpointManager
from surehold.engine.runs import pending, view_note

APPROVE = {"id": "report-wed", "waiting": "approve@6", "how": "approve"}


def newest_note(manager: CheckpointManager, run_id: str) -> Any:
    *_, record = manager.storage.read(run_id)
    return view_note(manager.reader, record)


def test_an_approval_is_told_first_then_recorded_with_who(
    page: Browser, manager: CheckpointManager
) -> None:
    text = text_of(page.get("/act/answer", params=APPROVE))
    assert "recorded as true" in text
    assert "surehold answer report-wed true --id approve@6" in text
    assert "surehold.answer('report-wed', 'approve@6', True)" in text
    assert len(pending(storage=manager)) == 1
    assert page.submit("/act/answer", **APPROVE).status_code == 303
    assert pending(storage=manager) == []
    note = newest_note(manager, "report-wed")
    assert note.value is True
    assert note.facts["by"]
    assert page.submit("/act/answer", **APPROVE).status_code == 404


def test_a_rejection_may_give_a_reason(page: Browser, manager: CheckpointManager) -> None:
    reject = {**APPROVE, "how": "reject", "value": "not yet"}
    assert page.submit("/act/answer", **reject).status_code == 400
    assert page.submit("/act/answer", **{**reject, "value": ""}).status_code == 303
    assert newest_note(manager, "report-wed").value is False


@pytest.mark.parametrize(
    ("how", "value", "state"),
    [("happened", '"paid"', "done"), ("failed", "no money", "failed"), ("repeat", "", "repeat")],
)
def test_an_effect_in_doubt_has_three_outcomes(
    manager: CheckpointManager, open_page: Open, how: str, value: str, state: str
) -> None:
    in_doubt(manager)
    page = open_page(manager)
    (one,) = [one for one in pending(storage=manager) if one.kind == "effect"]
    assert one.key in page.get("/waiting").text
    fields = {"id": one.run_id, "waiting": one.id, "how": how, "value": value}
    assert one.id in text_of(page.get("/act/answer", params=fields))
    assert page.submit("/act/answer", **fields).status_code == 303
    note = newest_note(manager, one.run_id)
    assert note.state == state
    assert note.facts["by"]


def test_a_fork_begins_with_edited_values(page: Browser, manager: CheckpointManager) -> None:
    latest = manager.list_checkpoints("report-mon")[3]
    assert "inherits no effects" in text_of(
        page.get("/act/fork", params={"checkpoint": latest.checkpoint_id})
    )
    fields = {"checkpoint": latest.checkpoint_id, "run_id": "twin", "edit": '{"topic": "moss"}'}
    answer = page.submit("/act/fork", **fields)
    assert answer.headers["location"] == "/run?id=twin"
    assert manager.resume_from_latest("twin")["topic"] == "moss"
    assert manager.resume_from_latest("report-mon")["topic"] == "kelp"
    assert page.submit("/act/fork", **{**fields, "edit": "[1]"}).status_code == 400


def test_tags_and_pins_are_marked_with_who(page: Browser, manager: CheckpointManager) -> None:
    latest = manager.latest("crawl")
    assert latest is not None
    one = {"checkpoint": latest.checkpoint_id}
    assert page.submit("/act/tag", **one, add="good better").status_code == 303
    assert newest_note(manager, "crawl").facts["by"]
    assert manager.list_checkpoints(tag="better")
    assert page.submit("/act/tag", **one, remove="better").status_code == 303
    assert not manager.list_checkpoints(tag="better")
    assert page.submit("/act/tag", **one).status_code == 400
    assert page.submit("/act/pin", **one, on="1").status_code == 303
    assert newest_note(manager, "crawl").facts["by"]
    assert "Unpin" in page.get("/run?id=crawl").text


def test_forgetting_is_previewed_with_reasons(page: Browser, manager: CheckpointManager) -> None:
    assert "There are no rules" in text_of(page.get("/act/forget?id=crawl"))
    text = text_of(page.get("/act/forget?id=crawl&keep_last=5"))
    assert "116 are dropped and 5 are kept" in text
    assert "surehold forget crawl --keep-last 5" in text
    assert "crawl@1 to @116" in text and "drop 116 no rule keeps it" in text
    assert len(manager.list_checkpoints("crawl")) == 121
    assert page.submit("/act/forget", id="crawl", keep_last="5").status_code == 303
    assert len(manager.list_checkpoints("crawl")) == 5
    assert page.submit("/act/forget", id="crawl", keep_last="x").status_code == 400


def test_verify_opens_every_record(page: Browser) -> None:
    assert "every state was rebuilt: sound" in text_of(page.get("/act/verify?id=report-mon"))


def test_an_export_can_be_imported(
    page: Browser, manager: CheckpointManager, tmp_path: Any
) -> None:
    answer = page.get("/export?id=report-mon")
    assert "attachment" in answer.headers["content-disposition"]
    file = tmp_path / "got.surehold"
    file.write_bytes(answer.content)
    assert manager.import_run(file, "copy") == "copy"
    assert manager.resume_from_latest("copy")["topic"] == "kelp"
    assert page.get("/export?id=report-mon&form=json").json()[0]["run_id"] == "report-mon"
    file = page.get("/export?id=report-mon&form=html")
    assert file.headers["content-disposition"] == 'attachment; filename="run.html"'
    assert "<script" not in file.text and "brown alga" in file.text


def test_resume_needs_the_address_of_the_storage(page: Browser) -> None:
    text = text_of(page.get("/act/resume?id=report-tue"))
    assert "would continue after step 1" in text
    assert "does not know the storage's address" in text
    assert page.submit("/act/resume", id="report-tue").status_code == 400


def test_a_run_that_no_graph_made_is_not_offered_a_resume(
    manager: CheckpointManager, open_page: Open
) -> None:
    manager.save_checkpoint(surehold.AgentState(agent_id="ada", run_id="agent", step_number=1))
    answer = open_page(manager).get("/act/resume?id=agent")
    assert "Resume agent" in text_of(answer)
    assert 'class="error"' in answer.text
    assert 'class="primary"' not in answer.text


def test_another_browser_gets_a_link_of_its_own(page: Browser, manager: CheckpointManager) -> None:
    import re

    text = page.submit("/act/link").text
    found = re.search(r"<code>http://127.0.0.1:4653(/\?token=[\w-]+)</code>", text)
    assert found is not None
    page.cookies.clear()
    assert page.get(found[1]).status_code == 200


def by(manager: CheckpointManager, run_id: str) -> list[tuple[str, str]]:
    """What the notes of a run say was done to it, and by whom."""
    notes = [view_note(manager.reader, record) for record in manager.storage.read(run_id)]
    found = [note.facts for note in notes if note.kind == "action"]
    return [(facts["did"], facts["by"]) for facts in found]


def test_a_fork_is_edited_by_fields(page: Browser, manager: CheckpointManager) -> None:
    checkpoint = manager.list_checkpoints("report-mon")[3].checkpoint_id
    form = page.get("/act/fork", params={"checkpoint": checkpoint}).text
    assert 'name="k-topic" value="kelp"' in form
    fields = {
        "checkpoint": checkpoint,
        "run_id": "twin",
        "k-topic": "moss",
        "k-questions": '["what?"]',
    }
    assert page.submit("/act/fork", **fields, edit='{"audience": "me"}').status_code == 303
    state = manager.resume_from_latest("twin")
    assert (state["topic"], [*state["questions"]], state["audience"]) == ("moss", ["what?"], "me")
    ((did, who),) = by(manager, "twin")
    assert did.startswith("forked it from report-mon@") and "topic" in did and who
    bad = {**fields, "run_id": "bad", "k-questions": "what?"}
    answer = page.submit("/act/fork", **bad)
    assert answer.status_code == 400 and "Questions is JSON here" in answer.text
    assert manager.reader.run("bad") is None


def test_a_fork_without_edits_is_the_same(page: Browser, manager: CheckpointManager) -> None:
    checkpoint = manager.list_checkpoints("report-mon")[3].checkpoint_id
    form = page.get("/act/fork", params={"checkpoint": checkpoint}).text
    import html as escaping
    import re

    sent = {
        escaping.unescape(name): escaping.unescape(value).replace("\n", "\r\n")
        for name, value in re.findall(r'name="(k-[^"]+)"[^>]*>([^<]*)</textarea>', form)
    }
    assert sent
    assert page.submit("/act/fork", checkpoint=checkpoint, run_id="same", **sent).status_code == 303
    assert [did for did, _ in by(manager, "same")] == ["forked it from report-mon@4"]


def test_forgetting_notes_who_did_it(page: Browser, manager: CheckpointManager) -> None:
    assert page.submit("/act/forget", id="crawl", keep_last="5").status_code == 303
    ((did, who),) = by(manager, "crawl")
    assert did.startswith("dropped 116 checkpoints") and who


@pytest.fixture
def runner(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A page that can resume; what it would start is noted instead."""
    from starlette.testclient import TestClient
    from tests.web.conftest import BASE

    from surehold.web.actions import resumes
    from surehold.web.application import build

    started: list[list[str]] = []

    class Process:
        pid = 1

        def __init__(self, words: list[str], **_: Any) -> None:
            started.append(words[3:])

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(resumes.subprocess, "Popen", Process)
    site = build(
        manager,
        auth=lambda _: "ada",
        key=b"k",
        hosts=["127.0.0.1"],
        read_only=False,
        address="sqlite:///runs.db",
    )
    with TestClient(site, base_url=BASE) as client:
        client.__class__ = Browser
        yield client, started


def test_a_refused_resume_gives_no_command_that_fails_as_well(
    runner: Any, manager: CheckpointManager
) -> None:
    manager.save_checkpoint(surehold.AgentState(agent_id="ada", run_id="agent", step_number=1))
    told = runner[0].get("/act/resume?id=agent").text
    assert "start the program that began it again" in told
    assert "surehold resume" not in told and "resume_sync" not in told


def test_a_resume_says_which_steps_run_and_what_they_may_cost(
    runner: Any, manager: CheckpointManager
) -> None:
    page, started = runner
    text = text_of(page.get("/act/resume?id=report-tue"))
    assert "It would continue after step 1 with node 'search'." in text
    assert "likely next" in text and "about $0.0" in text  # on the graph
    assert "step search runs first" in text
    assert "step write runs next, if it goes as the other run did" in text
    assert "step plan is not executed again" in text
    assert "Estimated cost: $0.0" in text and "remaining steps cost in report-mon-kids" in text
    assert "surehold resume report-tue --yes" in text
    assert "graph.resume_sync('report-tue')" in text
    assert page.submit("/act/resume", id="report-tue").status_code == 303
    assert by(manager, "report-tue") == [("resumed it", "ada")]
    assert started == [
        ["resume", "--yes", "--entry", "surehold.demo.graph:graph", "--", "report-tue"]
    ]


def test_a_resume_says_which_effects_are_returned_asked_and_repeated(
    runner: Any, manager: CheckpointManager
) -> None:
    page, _ = runner
    text = text_of(page.get("/act/resume?id=report-wed"))
    assert "question approve@6 is waited for" in text


def test_a_rewind_says_what_is_not_repeated(runner: Any, manager: CheckpointManager) -> None:
    page, started = runner
    earlier = next(one for one in manager.list_checkpoints("report-mon") if one.step == 3)
    text = text_of(page.get("/act/rewind", params={"checkpoint": earlier.checkpoint_id}))
    assert "would be rewound from step 6 to step 3" in text
    assert "effect write@5 its recorded outcome is returned" in text
    assert "surehold resume report-mon@3 --yes" in text
    done = page.submit("/act/rewind", checkpoint=earlier.checkpoint_id)
    assert done.status_code == 303
    assert by(manager, "report-mon") == [("rewound it to step 3", "ada")]
    assert started[0][-1] == earlier.checkpoint_id


def test_the_newest_checkpoint_is_not_rewound_to(runner: Any, manager: CheckpointManager) -> None:
    page, _ = runner
    latest = manager.latest("report-tue")
    assert latest is not None
    answer = page.get("/act/rewind", params={"checkpoint": latest.checkpoint_id})
    assert "resume the run instead" in text_of(answer)
    assert 'class="primary"' not in answer.text


def test_a_damaged_run_is_repaired_from_the_page(
    page: Browser, manager: CheckpointManager, tmp_path: Any
) -> None:
    import apsw

    with apsw.Connection(str(tmp_path / "runs.db")) as db:
        db.execute(
            "UPDATE bodies SET body = zeroblob(9) WHERE ord = (SELECT r.ord FROM records r"
            " JOIN runs u ON u.pk = r.run WHERE u.run_id = 'crawl' AND r.seq = 50)"
        )
    shown = page.get("/run?id=crawl&step=50")
    assert "does not match its digest" in shown.text
    assert "/act/repair?id=crawl" in shown.text and "on_corrupt" not in shown.text
    found = page.get("/act/verify?id=crawl")
    assert "It is damaged" in text_of(found) and "/act/repair?id=crawl" in found.text
    preview = page.get("/act/repair?id=crawl")
    import re

    seen = re.search(r'name="seen" value="(\w+)"', preview.text)
    assert seen is not None
    assert page.submit("/act/repair", id="crawl", seen="another").status_code == 409
    assert page.submit("/act/repair", id="crawl", seen=seen[1]).status_code == 303
    assert by(manager, "crawl")[0][0] == "repaired it"
    assert "sound" in text_of(page.get("/act/verify?id=crawl"))
    assert "Nothing is damaged" in text_of(page.get("/act/repair?id=crawl"))


async def test_the_arguments_of_a_proposed_operation_can_be_edited(
    manager: CheckpointManager, open_page: Open
) -> None:
    from surehold.agents.tools.approval import ask_approval

    @surehold.workflow
    async def pay() -> str:
        said = await ask_approval("pay", {"amount": 100, "to": "bob"})
        return str(said.arguments)

    await pay.run(run_id="pay", storage=manager)
    page = open_page(manager)
    text = page.get("/waiting").text
    assert 'name="k-amount" value="100"' in text and "Digest" in text
    (one,) = [one for one in pending(storage=manager) if one.run_id == "pay"]
    edit = {"id": "pay", "waiting": one.id, "how": "edit", "k-amount": "50", "k-to": "bob"}
    assert '{"amount":50,"to":"bob"}' in text_of(page.get("/act/answer", params=edit))
    assert page.submit("/act/answer", **edit).status_code == 303
    assert newest_note(manager, "pay").value == {
        "approved": True,
        "arguments": {"amount": 50, "to": "bob"},
    }
