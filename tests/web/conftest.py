"""The page over a storage with runs of every kind, and a browser that is signed in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import surehold
from surehold import CheckpointManager
from surehold.demo.runs import make_runs
from surehold.web import app

TOKEN = "a-token-of-the-tests"
BASE = "http://127.0.0.1:4653"


class Browser(TestClient):
    """A signed-in browser on this page."""

    def form_token(self) -> str:
        """The token that forms of this session carry."""
        found = re.search(r'name="form_token" value="(\w+)"', self.get("/act/demo").text)
        assert found is not None
        return found[1]

    def submit(self, path: str, **fields: str) -> Any:
        """Send a form as the page does."""
        fields = {"form_token": self.form_token(), **fields}
        return self.post(path, data=fields, headers={"origin": BASE}, follow_redirects=False)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs of every kind. Tests get a copy of it."""
    path = tmp_path_factory.mktemp("web") / "runs.db"
    with CheckpointManager(f"sqlite:///{path}") as manager:
        with surehold.run("crawl", storage=manager) as run:
            for page in range(1, 121):
                run.checkpoint(node="read", pages=page, last=f"page-{page}")
        make_runs(manager)
    return path


@pytest.fixture
def manager(made: Path, tmp_path: Path) -> Iterator[CheckpointManager]:
    path = shutil.copy(made, tmp_path / "runs.db")
    with CheckpointManager(f"sqlite:///{path}") as opened:
        yield opened


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the key of cookies away from the developer's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


Open = Callable[..., Browser]


@pytest.fixture
def open_page() -> Iterator[Open]:
    """Opens a page and signs in."""
    opened: list[Browser] = []

    def open(manager: Any, **options: Any) -> Browser:
        site = app(manager, auth=TOKEN, **options)
        browser = Browser(site, base_url=BASE, raise_server_exceptions=False)
        opened.append(browser)
        assert browser.get(f"/?token={TOKEN}").status_code == 200
        return browser

    yield open
    for browser in opened:
        browser.close()


@pytest.fixture
def page(manager: CheckpointManager, open_page: Open) -> Browser:
    return open_page(manager)


def in_doubt(manager: CheckpointManager) -> None:
    """Leave an effect whose outcome is unknown."""

    def pay() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), surehold.run("payment", storage=manager) as run:
        run.checkpoint(order=1)
        run.effect("pay", pay)
