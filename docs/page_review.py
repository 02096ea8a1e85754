"""The runs on which every screen of the page is looked at: long, dear, wrong, and in Arabic."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from docs.page_runs import leave_in_doubt, make_agents, make_fleet, make_queue, make_thread

import surehold
from surehold import CheckpointManager
from surehold.demo.runs import make_runs

NODES = ("load", "extract", "rank", "critique", "rewrite", "check", "price", "store")
HOSTILE = "x; touch pwned #\" onmouseover='window.owned=1' `id` $(id)"
"""A run id that would be a command in a shell, and an attribute in a page."""
ANSWER = """## Tides in Brest

The **highest** tide of the week is on *Thursday*:

| day | high | low |
|---|---|---|
| Wed | 14:20 | 08:02 |
| Thu | 15:05 | 08:49 |

1. Look at the [table](https://tides.example/brest?week=47).
2. Add the wind, which `force(5)` pushes up:

```python
def height(tide, wind):
    return tide + 0.1 * wind
```

> A rule of thumb, and no promise.
"""


def fill_review(address: str, *, runs: int = 1000, long: int = 10_000) -> None:
    """Make all of them."""
    make_history(address)
    with CheckpointManager(address) as manager:
        make_many(manager, runs)
        make_long(manager, long)
        make_audit(manager)
        make_chat(manager)
        make_forks(manager)
        make_large(manager)
        make_hostile(manager)
        make_group(manager)
        make_runs(manager)
    leave_in_doubt(address)
    make_thread(address)
    make_queue(address)
    asyncio.run(make_fleet(address))
    asyncio.run(make_agents(address))


def make_history(address: str, days: int = 35) -> None:
    """A digest a day, each a little longer than the last, for five weeks until yesterday."""
    now = datetime.now(UTC)
    for ago in range(days, 0, -1):
        at = now - timedelta(days=ago)
        with (
            CheckpointManager(address, clock=partial(lambda at: at, at)) as manager,
            surehold.run(f"digest-{at:%m-%d}", storage=manager, name="digest") as run,
        ):
            for n in range(1, 4):
                usage = {"tokens": 900 * n, "output": 90 * n, "dollars": 0.004 * n * (1 + ago % 5)}
                run.effect("ask", lambda n=n: n, usage=partial(lambda told, _: told, usage))
                pages = [f"page {page} of {ago} days ago" for page in range(10 + days - ago)]
                run.checkpoint(node="digest", n=n, pages=pages)


def make_many(manager: CheckpointManager, count: int) -> None:
    """Short runs of four names, a tenth of which failed."""
    for number in range(count):
        name = f"sync-{'abcd'[number % 4]}"
        with (
            suppress(ValueError),
            surehold.run(f"sync-{number:04}", storage=manager, name=name) as run,
        ):
            run.checkpoint(node="sync", n=number)
            if number % 10 == 3:
                raise ValueError(f"customer {number} has no address")


def make_long(manager: CheckpointManager, count: int) -> None:
    """A run of so many checkpoints."""
    with surehold.run("long", storage=manager) as run:
        for n in range(count):
            run.checkpoint(node=("fetch", "parse", "store")[n % 3], n=n)


def make_audit(manager: CheckpointManager) -> None:
    """A loop of 40 steps and 8 nodes, whose calls cost money."""
    dice = random.Random(7)

    def ask(step: int) -> dict[str, Any]:
        return {"text": f"answer {step}", "in": 300 + 20 * step, "out": 60 + 7 * (step % 9)}

    def usage(reply: dict[str, Any]) -> dict[str, Any]:
        whole = reply["in"] + reply["out"]
        model = "large-2" if reply["out"] > 90 else "small-1"
        return {"tokens": whole, "output": reply["out"], "dollars": whole * 4e-5, "model": model}

    with surehold.run("invoice-audit-2026-11", storage=manager) as run:
        invoices = [{"id": n, "amount": 100 + n, "ok": None} for n in range(12)]
        for step in range(1, 41):
            node = NODES[step % len(NODES)]
            reply = run.effect(f"model:{node}", ask, step, usage=usage)
            if node == "check":
                invoices = [{**one, "ok": dice.random() > 0.3, "by": step} for one in invoices]
            summary = (
                f"After step {step} the audit has seen {step * 3} invoices and {reply['text']}."
            )
            run.checkpoint(
                node=node, score=round(dice.random(), 3), invoices=invoices, summary=summary
            )
        run.checkpoint(node="report", result="12 invoices, 3 of them are wrong.")


def make_chat(manager: CheckpointManager) -> None:
    """A conversation of 30 messages with Markdown, tool calls and long results."""
    messages: list[Any] = [{"role": "user", "content": "When are the tides in Brest?"}]
    with surehold.run("chat-markdown", storage=manager) as run:
        while len(messages) < 30:
            n = len(messages)
            if n % 3 == 1:
                call = {"name": "tide_table", "arguments": f'{{"port": "Brest", "week": {n}}}'}
                messages = [*messages, {"role": "assistant", "content": "", "tool_calls": [call]}]
            elif n % 3 == 2:
                table = "\n".join(f"{hour:02}:00  {hour % 7}.{n} m" for hour in range(24))
                messages = [*messages, {"role": "tool", "name": "tide_table", "content": table}]
            else:
                messages = [*messages, {"role": "assistant", "content": ANSWER}]
            run.checkpoint(node=str(messages[-1]["role"]), messages=messages)
    with surehold.run("محادثة-عربية", storage=manager) as run:
        said = [{"role": "user", "content": "متى يكون المد العالي في بريست؟"}]
        said.append({"role": "assistant", "content": "**المد العالي** الساعة 14:20 (UTC)."})
        run.checkpoint(node="جواب", messages=said, سؤال="متى؟")


def make_forks(manager: CheckpointManager) -> None:
    """A family of 12 runs: an essay, its forks, and theirs."""
    with surehold.run("essay", storage=manager) as run:
        for n in range(1, 9):
            run.checkpoint(node="draft", text=f"Draft {n} of the essay.", n=n)
    family = {
        "essay-warm": ("essay", 4),
        "essay-cold": ("essay", 4),
        "essay-warm-a1": ("essay-warm", 6),
        "essay-warm-a2": ("essay-warm", 7),
        "essay-warm-b1": ("essay-warm", 5),
        "essay-cold-a1": ("essay-cold", 6),
        "essay-cold-a2": ("essay-cold", 7),
        "essay-warm-a1-x": ("essay-warm-a1", 8),
        "essay-warm-a1-y": ("essay-warm-a1", 8),
        "essay-cold-a1-x": ("essay-cold-a1", 7),
        "essay-long": ("essay", 8),
    }
    for name, (origin, step) in family.items():
        found = manager.list_checkpoints(origin)
        at = next(one for one in found if one.step <= step)
        manager.fork_from_checkpoint(at.checkpoint_id, name)
        state = manager.resume_from_latest(name)
        for n in range(at.step + 1, at.step + 4):
            values = {"text": f"Draft {n}, {name.split('-')[1]}.", "n": n, "log": [name, n]}
            state = state.merge(values).at(step=n, node="draft")
            manager.save_checkpoint(state)


def make_large(manager: CheckpointManager) -> None:
    """A state of 5 MB."""
    with surehold.run("large-state", storage=manager) as run:
        rows = [{"n": n, "text": f"row {n} " + "x" * 80} for n in range(45_000)]
        run.checkpoint(node="load", rows=rows)
        run.checkpoint(node="count", total=len(rows))


def make_hostile(manager: CheckpointManager) -> None:
    """A run whose id, node, values and messages are attacks."""
    attack = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"
    link = "[click](javascript:window.owned=1) ![](x onerror=1) <b onclick=1>b</b>"
    with surehold.run(HOSTILE, storage=manager) as run:
        for n in range(3):
            messages = [{"role": "assistant", "content": f"{attack} {link}"}] * (n + 1)
            call = run.effect(attack, lambda text: text, attack)
            run.checkpoint(node=attack, messages=messages, task=attack, n=attack + call)


def make_group(manager: CheckpointManager) -> None:
    """A group of two runs."""
    for name in ("ledger", "stock"):
        with surehold.run(name, storage=manager) as run:
            run.checkpoint(node="count", n=1)
    surehold.group("books", ["ledger", "stock"], storage=manager).checkpoint()
