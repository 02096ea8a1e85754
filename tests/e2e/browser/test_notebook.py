"""Results, states, runs and graphs as cards in a notebook that Jupyter executes and converts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from docs.page_screens import new_context
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor
from playwright.sync_api import Browser, expect

CELLS = [
    """
import surehold

attack = "<img src=x onerror='window.owned=1'>"
with surehold.run("loop", storage="sqlite:///runs.db") as run:
    for page in run.each(["a", "b"]):
        run.state["last"] = page + attack
run
""",
    """
with surehold.CheckpointManager("sqlite:///runs.db") as manager:
    state = manager.resume_from_latest("loop")
state
""",
    """
graph = surehold.StateGraph("report", storage="sqlite:///runs.db")
graph.add_node("plan", lambda state: {"questions": ["what is kelp?", attack]})
graph.add_node("write", lambda state: {"report": "Kelp is an alga."})
graph.set_entry_point("plan")
graph.add_edge("plan", "write")
graph.set_exit_point("write")
result = await graph.run({"topic": "kelp"}, run_id="report-1")
result
""",
    "graph",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_jupyter_shows_cards_and_nbconvert_keeps_them(
    browser: Browser, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in CELLS])
    ExecutePreprocessor(timeout=600, kernel_name="python3").preprocess(
        book, {"metadata": {"path": str(tmp_path)}}
    )
    shown = ["".join(one.outputs[-1].data["text/html"]) for one in book.cells]
    for text, word in zip(shown, ("loop", "last", "report-1", "write"), strict=True):
        assert word in text
    converted, _ = HTMLExporter(template_name="basic").from_notebook_node(book)
    file = tmp_path / "book.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{converted}", "utf-8")
    page = new_context(browser).new_page()
    page.goto(file.as_uri())
    for word in ("loop", "report-1", "completed", "what is kelp?"):
        expect(page.locator("body")).to_contain_text(word)
    assert page.locator("img").count() == 0 and page.evaluate("window.owned") is None
    page.screenshot(path=tmp_path / "book.png", full_page=True)
    page.context.close()
