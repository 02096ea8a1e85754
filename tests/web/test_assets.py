"""The style sheet and the scripts: served as they are in the repository, and checked by hash."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from tests.web.conftest import Browser

import surehold.web

STATIC = Path(surehold.web.__file__).parent / "static"


def test_files_are_served_as_they_are_in_the_repository(page: Browser) -> None:
    text = page.get("/").text
    version = re.search(r"/static/(\w+)/page\.css", text)
    assert version is not None
    for file in STATIC.iterdir():
        answer = page.get(f"/static/{version[1]}/{file.name}")
        assert answer.content == file.read_bytes()
        assert "immutable" in answer.headers["cache-control"]


def test_a_browser_checks_the_hash_of_what_a_page_loads(page: Browser) -> None:
    text = page.get("/").text
    found = re.findall(r'/(page\.\w+)" integrity="(.+?)"', text)
    assert sorted(name for name, _ in found) == ["page.css", "page.js"]
    assert text.count("<script") == 1 and text.count('rel="stylesheet"') == 1
    for name, stated in found:
        digest = hashlib.sha256((STATIC / name).read_bytes()).digest()
        assert stated == f"sha256-{base64.b64encode(digest).decode()}"


def test_scripts_are_small_enough_to_read() -> None:
    assert sum(len(file.read_text().splitlines()) for file in STATIC.glob("*.js")) < 700
