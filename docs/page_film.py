"""A short film of the page: what waits, a run that is dragged through, a fork tree, a resume.

`make screens` writes it; the browser tests make it too, so that no scene of it can get lost.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page

SIZE = (1080, 680)
_SHOWN = (900, 567)
RUN = "/run?id=invoice-audit-2026-11&tab=state"


class Film:
    """Frames of a page, each with the time that it is shown, and the pointer."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.frames: list[tuple[Image.Image, int]] = []
        self._base = base
        self._at = (SIZE[0] / 2, SIZE[1] / 2)

    def open(self, path: str, milliseconds: int) -> None:
        """Go to a path, and show it for so long."""
        self.page.goto(self._base + path)
        self.take(milliseconds)

    def take(self, milliseconds: int) -> None:
        """Show what the page looks like now for so long."""
        image = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        x, y = self._at
        draw = ImageDraw.Draw(image, "RGBA")
        draw.ellipse((x - 11, y - 11, x + 11, y + 11), fill=(15, 118, 110, 90))
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=(15, 118, 110, 255))
        self.frames.append((image.resize(_SHOWN, Image.Resampling.LANCZOS), milliseconds))

    def point(self, place: Locator, milliseconds: int = 300) -> None:
        """Move the pointer there, in a few frames."""
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        assert box is not None
        (x, y), to = self._at, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for part in (0.4, 0.8, 1.0):
            self._at = (x + part * (to[0] - x), y + part * (to[1] - y))
            self.page.mouse.move(*self._at)
            self.take(milliseconds if part == 1 else 60)

    def click(self, place: Locator, milliseconds: int) -> None:
        """Click there, and show what comes."""
        self.point(place)
        place.click()
        self.page.wait_for_load_state()
        self.take(milliseconds)

    def drag(self, cells: Locator, places: list[int]) -> None:
        """Press on the first of these cells, and go over the others."""
        self.point(cells.nth(places[0]))
        self.page.mouse.down()
        for place in places:
            box = cells.nth(place).bounding_box()
            assert box is not None
            self._at = (box["x"] + box["width"] / 2, box["y"] + 24)
            self.page.mouse.move(*self._at)
            step = cells.nth(place).get_attribute("data-step")
            self.page.locator(f'.detail[aria-label="Step {step}"]').wait_for()
            self.take(170)
        self.page.mouse.up()

    def write(self, path: Path) -> None:
        """Write the film as an animated picture."""
        first, *others = (image for image, _ in self.frames)
        times = [milliseconds for _, milliseconds in self.frames]
        first.save(
            path, save_all=True, append_images=others, duration=times, loop=0, quality=70, method=4
        )


def make_film(page: Page, base: str, path: Path) -> Film:
    """Play the scenes on the runs of the review, and write them."""
    film = Film(page, base)
    film.open("/", 1800)
    film.open(RUN, 700)
    cells = page.locator("#strip .cell")
    last = cells.count() - 3
    film.drag(cells, [*range(last, last - 14, -1), *range(last - 13, last - 7)])
    film.take(900)
    film.click(page.locator(".tabs a", has_text="graph"), 1500)
    film.open("/forks?id=essay", 1100)
    ticked = page.locator("[name=pick]:checked")
    while ticked.count():
        ticked.first.uncheck()
    for run in ("essay-warm-a1-x", "essay-cold-a1"):
        film.click(page.locator(f'[name=pick][value="{run}"]'), 300)
    film.click(page.get_by_role("button", name="Compare the two"), 1700)
    film.open("/waiting", 1500)
    film.open("/act/resume?id=report-tue", 2400)
    film.write(path)
    return film
