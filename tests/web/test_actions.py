"""Actions say what they do, do it once confirmed, and record who did it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.conftest import Browser, Open, in_doubt
from tests.web.test_pages import text_of

import holdfast
from holdfast import CheckpointManager
from holdfast.checkpoint.effects import pending
from holdfast.checkpoint.inspect import view_note

APPROVE = {"id": "report-wed", "waiting": "approve@6", "how": "approve"}


def newest_note(manager: CheckpointManager, run_id: str) -> Any:
    *_, record = manager.storage.read(run_id)
    return view_note(manager.reader, record)


def test_an_approval_is_told_first_then_recorded_with_who(
    page: Browser, manager: CheckpointManager
) -> None:
    text = text_of(page.get("/act/answer", params=APPROVE))
    assert "recorded as true" in text
    assert "holdfast answer report-wed true --id approve@6" in text
    assert "holdfast.answer('report-wed', 'approve@6', True)" in text
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
    assert "holdfast forget crawl --keep-last 5" in text
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
    file = tmp_path / "got.holdfast"
    file.write_bytes(answer.content)
    assert manager.import_run(file, "copy") == "copy"
    assert manager.resume_from_latest("copy")["topic"] == "kelp"
    assert page.get("/export?id=report-mon&form=json").json()[0]["run_id"] == "report-mon"


def test_resume_needs_the_address_of_the_storage(page: Browser) -> None:
    text = text_of(page.get("/act/resume?id=report-tue"))
    assert "would continue after step 1" in text
    assert "does not know the storage's address" in text
    assert page.submit("/act/resume", id="report-tue").status_code == 400


def test_a_run_that_no_graph_made_is_not_offered_a_resume(
    manager: CheckpointManager, open_page: Open
) -> None:
    manager.save_checkpoint(holdfast.AgentState(agent_id="ada", run_id="agent", step_number=1))
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
