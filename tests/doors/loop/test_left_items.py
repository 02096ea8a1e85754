"""State is of finished items: what people write around `each`, killed after every append.

Each program is executed once without interruption. Then, for every append that it made, its process
is killed right after that append, and the program is started again. It must end with the same
state and make only the calls that were not recorded, or refuse before it saves anything.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.builders.counting import Counting

import surehold
from surehold.core.records import Effect
from surehold.doors.loop import Run
from surehold.errors import ShapeError, UsageError

Program = Callable[[Run, Callable[..., Any]], Any]
"""The code of a run; the second argument makes a recorded call and gives its argument back."""


def add(run: Run, key: str, number: int = 1) -> None:
    run.state[key] = run.state.get(key, 0) + number


def found_it(run: Run, call: Callable[..., Any]) -> None:
    found = None
    for number in run.each(range(10)):
        add(run, "sum", call(number))
        if number == 3:
            run.state["found"] = found = number
            break
    call("found", found, run.state["found"])
    for letter in run.each("abc"):
        add(run, "letters")
        call(letter)
    add(run, "after")


def budget_of_state(run: Run, call: Callable[..., Any]) -> None:
    for number in run.each(range(10)):
        add(run, "sum", number)
        if run.state["sum"] >= 6:
            break
    for _ in run.each("abc"):
        add(run, "letters")


def caught_outside(run: Run, call: Callable[..., Any]) -> None:
    try:
        for number in run.each([4, 2, 0, 1]):
            add(run, "tried")
            call(number)
            run.state["sum"] = run.state.get("sum", 0) + 8 // number
    except ZeroDivisionError:
        add(run, "errors")
        call("handled")
    for letter in run.each("ab"):
        call("handled", letter)
        add(run, "letters")


def returned(run: Run, call: Callable[..., Any]) -> None:
    def first_above(limit: int) -> int:
        for number in run.each(range(10)):
            add(run, "looked")
            if call(limit, number) > limit:
                return number
        return -1

    run.state["first"] = first_above(2)
    run.state["second"] = first_above(4)
    for _ in run.each("ab"):
        add(run, "letters")


def skipped(run: Run, call: Callable[..., Any]) -> None:
    for number in run.each(range(5)):
        if number % 2:
            continue
        add(run, "even", call(number))


def chapters(run: Run, call: Callable[..., Any]) -> None:
    add(run, "books")
    run.state["title"] = call("title")
    for chapter in run.each(["one", "two"]):
        add(run, "chapters")
        pages = run.state.setdefault("pages", [])
        for page in run.each([1, 2, 3]):
            pages.append(call(chapter, page))
            add(run, "count")
        add(run, "ended")
        pages.append(chapter)
    add(run, "sold")


def chapters_with_breaks(run: Run, call: Callable[..., Any]) -> None:
    for chapter in run.each("xyz"):
        add(run, "chapters")
        for page in run.each(range(4)):
            add(run, "pages")
            if page == 1:
                break
        add(run, "between")
        for note in run.each("ab"):
            add(run, "notes")
            call(chapter, note)
        if chapter == "y":
            break
    for _ in run.each("ab"):
        add(run, "letters")


@dataclass
class Book:
    pages: int = 0
    lines: list[str] = field(default_factory=list)


class Shelf(msgspec.Struct):
    books: dict[str, Book] = {}


class Card(BaseModel):
    seen: set[str] = set()


def names_that_code_holds(run: Run, call: Callable[..., Any]) -> None:
    book, shelf = run.state.setdefault("book", Book()), run.state.setdefault("shelf", Shelf())
    queue = run.state.setdefault("queue", deque(maxlen=2))
    counts, raw = (
        run.state.setdefault("counts", Counter()),
        run.state.setdefault("raw", bytearray()),
    )
    inside = run.state.setdefault("a", {}).setdefault("b", defaultdict(list))
    cards = run.state.setdefault("cards", (Card(), [], {"all"}))
    for chapter in run.each("ab"):
        book.pages += call(1)
        shelf.books[chapter] = Book(book.pages)
        queue.append(chapter)
        for page in run.each("xyz"):
            counts[page] += call(2)
            book.lines.append(chapter + page)
            inside[chapter].append(page)
            cards[0].seen.add(page)
            cards[1].append(page)
            cards[2].add(chapter)
            raw.extend(page.encode())


def partly_consumed(run: Run, call: Callable[..., Any]) -> None:
    for number in run.each(itertools.islice(itertools.count(), 3)):
        add(run, "sum", call(number))
    first = next(iter(run.each("pq")))
    add(run, first)

    def some() -> Iterator[int]:
        for number in run.each(range(100, 110)):
            add(run, "made")
            yield number

    for number in some():
        if call(number) == 102:
            break
    for number, letter in run.each(enumerate("abc")):
        add(run, letter, number)


def two_loops_with_code_between(run: Run, call: Callable[..., Any]) -> None:
    kept = run.state
    add(run, "begun")
    log = kept.setdefault("log", [])
    for number in run.each(range(2)):
        log.append(number)
    add(run, "middle")
    log.append("middle")
    for number in run.each("ab"):
        log.append(number)
        kept["last"] = number
    log.append("end")


def checkpoint_before_a_loop(run: Run, call: Callable[..., Any]) -> None:
    run.checkpoint(phase=1)
    for number in run.each(range(3)):
        add(run, "sum", number)


def guarded_checkpoint_in_an_item(run: Run, call: Callable[..., Any]) -> None:
    for number in run.each(range(3)):
        for part in range(run.state.get("part", 0), 2):
            run.state.setdefault("parts", []).append(call(number, part))
            run.checkpoint(part=part + 1)
        run.state["part"] = 0


def checkpoints_between_loops(run: Run, call: Callable[..., Any]) -> None:
    for phase in range(run.state.get("phase", 0), 3):
        for number in run.each(range(3)):
            add(run, f"sum{phase}", call(phase, number))
            if number == phase:
                break
        run.checkpoint(phase=phase + 1)


PROGRAMS = [
    found_it,
    budget_of_state,
    caught_outside,
    returned,
    skipped,
    chapters,
    chapters_with_breaks,
    names_that_code_holds,
    partly_consumed,
    two_loops_with_code_between,
    checkpoint_before_a_loop,
    guarded_checkpoint_in_an_item,
    checkpoints_between_loops,
]


def execute(storage: Counting, program: Program, **options: Any) -> tuple[dict[str, Any], Any]:
    """Execute *program*; its last state, and the calls that were made."""
    made: list[Any] = []

    def work(*args: Any) -> Any:
        made.append(args)
        return args[-1]

    with surehold.run("r", storage=storage, **options) as run:
        program(run, lambda *args: run.effect("work", work, *args, in_doubt="retry"))
    assert run.completed
    return run.state, made


def recorded(storage: Counting) -> int:
    ids = set()
    for batch in itertools.chain(*storage.appended):
        for record in batch.records:
            if record.header.frame == "note" and record.header.kind == "effect":
                entry = msgspec.json.decode(record.body, type=Effect)
                ids |= {entry.id} if entry.done else set()
    return len(ids)


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_kill_after_any_append_changes_neither_the_state_nor_the_calls(
    program: Program, every: int | None
) -> None:
    whole = Counting()
    state, made = execute(whole, program, every=every)
    for appends in range(1, len(whole.appended) + 1):
        left = whole.killed_after(appends)
        left.appended = whole.appended[:appends]
        known = recorded(left)
        assert execute(left, program, every=every) == (state, made[known:]), appends
        # It is killed again in its second life, and started again when it is completed.
        for more in range(appends + 1, len(left.appended), 3):
            twice = left.killed_after(more)
            assert execute(twice, program, every=every)[0] == state, (appends, more)
        length = len(left.appended)
        assert execute(left, program, every=every) == (state, [])
        assert len(left.appended) == length


def test_async_loops_that_are_left(caplog: pytest.LogCaptureFixture) -> None:
    async def program(storage: Counting) -> dict[str, Any]:
        async with surehold.run("r", storage=storage) as run:
            with suppress(KeyError):
                async for number in run.each(range(5)):
                    add(run, "sum", number)
                    if number == 2:
                        raise KeyError
            async for letter in run.each("xy"):
                add(run, "outer")
                async for part in run.each(range(3)):
                    add(run, "inner", await run.effect("int", int, part, in_doubt="retry"))
                    if part == 1:
                        break
                await asyncio.sleep(0)
                async for _ in run.each(letter):
                    add(run, "last")
        return run.state

    whole = Counting()
    state = asyncio.run(program(whole))
    assert state == {"sum": 3, "outer": 2, "inner": 2, "last": 2}
    for appends in range(1, len(whole.appended) + 1):
        assert asyncio.run(program(whole.killed_after(appends))) == state, appends


@pytest.mark.parametrize("paired", [True, False])
def test_loops_that_take_turns_are_refused_before_anything_is_saved(paired: bool) -> None:
    storage = Counting()
    with (
        pytest.raises(UsageError, match=r"take turns.*each\(zip\(a, b\)\)"),
        surehold.run("r", storage=storage) as run,
    ):
        if paired:
            for left, right in zip(run.each([1, 2]), run.each("ab"), strict=True):
                add(run, f"{left}{right}")
        else:
            for number in run.each([1, 2]):
                inner = iter(run.each("ab"))
                add(run, f"{number}{next(inner)}")
    assert (run.status, run.state, run.step) == ("failed", {}, 0)
    with surehold.run("r", storage=storage) as run:
        for left, right in run.each(zip([1, 2], "ab", strict=True)):
            add(run, f"{left}{right}")
    assert run.state == {"1a": 1, "2b": 1}


def test_tasks_that_loop_at_the_same_time_are_refused() -> None:
    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        async with surehold.run("r", storage="memory://") as run:

            async def ends_its_item() -> None:
                async for item in run.each("ab"):
                    add(run, item)
                    first.set()
                    await second.wait()

            async def stays_in_its_item() -> None:
                await first.wait()
                async for item in run.each("xy"):
                    add(run, item)
                    second.set()
                    await asyncio.Event().wait()

            await asyncio.gather(ends_its_item(), stays_in_its_item())

    with pytest.raises(UsageError, match="take turns"):
        asyncio.run(main())


def killed_in_the_second_loop(program: Callable[[Run], None]) -> Counting:
    """A storage in which *program* is killed after its third item."""
    storage = Counting()
    with surehold.run("r", storage=storage) as run:
        program(run)
    return storage.killed_after(3)


def test_code_that_does_not_return_to_its_place_is_refused_and_saves_nothing() -> None:
    def decides_by_the_state(run: Run) -> None:
        for number in run.each([1, 2, 3, 4]):
            add(run, "sum", number)
            if run.state["sum"] == 3:
                break
        for _ in run.each("ab"):
            add(run, "letters")

    def skips_the_loop(run: Run) -> None:
        for number in run.each([1, 2]):
            add(run, "sum", number)
            if number == 2:
                break
        if run.state["sum"] == 3:
            for _ in run.each("ab"):
                add(run, "letters")

    def guards_the_first(run: Run) -> None:
        if "found" not in run.state:
            for number in run.each([1, 2]):
                run.state["found"] = number
                break
        for _ in run.each("abcd"):
            add(run, "letters")

    for program in (decides_by_the_state, skips_the_loop, guards_the_first):
        left = killed_in_the_second_loop(program)
        with pytest.raises(ShapeError), surehold.run("r", storage=left) as run:
            program(run)
        assert left.appended == []


def test_a_loop_before_the_saved_one_gets_no_more_items() -> None:
    def work(storage: Counting, first: str) -> None:
        with surehold.run("r", storage=storage) as run:
            for letter in run.each(first):
                add(run, letter)
            for _ in run.each("xy"):
                add(run, "second")

    whole = Counting()
    work(whole, "ab")
    left = whole.killed_after(4)
    with pytest.raises(ShapeError, match="saved in a later loop"):
        work(left, "abc")
    assert left.appended == []


def test_a_completed_run_says_in_which_item_a_loop_was_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING, "surehold"),
        surehold.run("r", storage="memory://") as run,
    ):
        for number in run.each(range(10)):
            if number == 3:
                break
    assert "run r is completed; its each() was left in item 4, and no later item" in caplog.text
