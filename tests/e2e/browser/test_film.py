"""The film of the page in the documentation can be made, and is small enough to be shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from docs.page_film import SIZE, make_film
from docs.page_review import fill_review
from PIL import Image


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('film')}/runs.db"
    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(fill_review, address, runs=40, long=600).result()
    return address


def test_the_film_has_all_its_scenes(open_page: Any, base: str, tmp_path: Path) -> None:
    page = open_page("/", viewport={"width": SIZE[0], "height": SIZE[1]})
    film = make_film(page, base, tmp_path / "page.webp")
    assert len(film.frames) > 30
    assert 12_000 < sum(milliseconds for _, milliseconds in film.frames) < 30_000
    assert (tmp_path / "page.webp").stat().st_size < 1_500_000
    with Image.open(tmp_path / "page.webp") as made:
        assert getattr(made, "n_frames", 1) > 30
