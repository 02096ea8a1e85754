"""What is typed into the page is redacted as everything else that its manager writes."""

from __future__ import annotations

from pathlib import Path

from tests.engine.test_secrets import NAMED, SHAPED, assert_clean, hooks
from tests.web.conftest import Open, in_doubt

from surehold import CheckpointManager
from surehold.engine.runs import pending


def test_the_page_writes_no_secret(
    manager: CheckpointManager, open_page: Open, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with CheckpointManager(url, hook_manager=hooks()) as redacting:
        page = open_page(redacting)
        latest = manager.list_checkpoints("report-mon")[3].checkpoint_id
        edit = f'{{"topic": "{SHAPED}", "password": "{NAMED}"}}'
        fork = {"checkpoint": latest, "run_id": "twin", "edit": edit}
        assert page.submit("/act/fork", **fork).status_code == 303
        assert manager.resume_from_latest("twin")["password"] == "[redacted:password]"
        tag = {"checkpoint": latest, "add": SHAPED[:60]}
        assert page.submit("/act/tag", **tag).status_code == 303
        in_doubt(manager)
        (one,) = [one for one in pending(storage=manager) if one.kind == "effect"]
        fields = {"id": one.run_id, "waiting": one.id, "how": "happened", "value": f'"{SHAPED}"'}
        assert page.submit("/act/answer", **fields).status_code == 303
    assert_clean(url, tmp_path)
