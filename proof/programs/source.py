"""The source of a program made by chance: ordinary Python around recorded calls.

Each call has the name of its branch as its first argument: ``b`` for the body, ``b.4`` for a branch
that began there. The second is a number, which no other call of the program has.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["DOORS", "PLAIN", "source_of"]

DOORS = (
    *("function", "async function", "loop", "async loop", "node", "plain node"),
    *("agent", "plain agent", "fleet"),
)
"""Where the body of a program stands: in a node, a tool of an agent, or a member of a fleet."""
PLAIN = ("function", "loop", "plain node", "plain agent")
"""The doors whose programs are not async."""
_WITHOUT_WAITS = ("loop", "plain node", "plain agent")

_DEEP = 3


def source_of(chance: random.Random, door: str) -> str:
    """The source of a function ``body``, which returns its log."""
    return _Writer(chance, door).write()


class _Writer:
    def __init__(self, chance: random.Random, door: str) -> None:
        self._chance = chance
        self._door = door
        self._async = door not in PLAIN
        self._lines: list[str] = []
        self._number = 0
        self._left = chance.randint(4, 9)
        """Statements that may still be written."""
        self._failing = True
        """False where a failure would cancel calls of other branches in flight."""

    def write(self) -> str:
        self._line(0, f"{self._def}def body(run):")
        kept = 'run.state.setdefault("log", [])' if self._door.endswith("loop") else "[]"
        self._line(1, f"log = {kept}")
        if self._door.endswith("loop"):
            self._line(1, 'held = run.state.setdefault("held", Held())')
        self._block(1, "b", 0, least=2)
        if self._chance.random() < 0.15:
            self._line(1, f"log.append({self._call('b', 'flaky')})")
        self._line(1, "return log")
        return "\n".join(self._lines) + "\n"

    # Parts

    @property
    def _def(self) -> str:
        return "async " if self._async else ""

    @property
    def _await(self) -> str:
        return "await " if self._async else ""

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _call(self, tag: str, kind: str = "") -> str:
        kind = kind or self._chance.choice(("call", "call", "call", "pay", "inner"))
        return f'{self._await}{kind}("{tag}", {self._next()})'

    def _bare(self, tag: str, *kinds: str) -> str:
        """A call that is not awaited here, a branch of its own."""
        number = self._next()
        return f'{self._chance.choice(kinds)}("{tag}.{number}", {number})'

    def _block(self, depth: int, tag: str, deep: int, *, least: int = 1) -> None:
        wanted = self._chance.randint(least, 3)
        for _ in range(wanted):
            if self._left <= 0 and least == 0:
                break
            self._left -= 1
            kinds = self._simple() if deep >= _DEEP or self._left <= 0 else self._all(tag)
            self._chance.choice(kinds)(depth, tag, deep)
        if wanted == 0:
            self._line(depth, "pass")

    def _simple(self) -> list[Callable[[int, str, int], None]]:
        kinds = [self._append, self._append, self._caught, self._dice, self._changed]
        if self._waits:
            kinds += [self._wait, self._late]
        return kinds

    def _all(self, tag: str) -> list[Callable[[int, str, int], None]]:
        kinds = [*self._simple(), self._finally, self._finally, self._except, self._with]
        kinds += [self._with, self._generator, self._loop, self._saga, self._swallow, self._hide]
        kinds += [self._stack, self._tries]
        if self._async and self._failing:
            kinds += [self._gather, self._gather, self._group, self._branches, self._branches]
            kinds += [self._failed_group]
        if self._door.endswith("function"):
            kinds += [self._child]
        if self._door.endswith("loop") and tag == "b":
            kinds += [self._each] * 6
        return kinds

    @property
    def _waits(self) -> bool:
        return self._door not in _WITHOUT_WAITS

    # Statements

    def _append(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, f"log.append({self._call(tag)})")

    def _wait(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, f"log.append({self._call(tag, 'wait')})")

    def _late(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._line(depth + 1, f"log.append({self._call(tag, 'late')})")
        self._line(depth, "except TimeoutError:")
        self._line(depth + 1, 'log.append("late")')

    def _dice(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, f"log.append({self._call(tag, 'dice')})")

    def _changed(self, depth: int, tag: str, deep: int) -> None:
        name = f"given{self._next()}"
        self._line(depth, f"{name} = [1]")
        self._line(depth, f'log.append({self._await}change("{tag}", {self._next()}, {name}))')
        self._line(depth, f"log.append(len({name}))")

    def _caught(self, depth: int, tag: str, deep: int) -> None:
        if not self._failing:
            return self._append(depth, tag, deep)
        self._line(depth, "try:")
        self._line(depth + 1, f"log.append({self._call(tag, 'fail')})")
        self._line(depth, "except ConnectionError as error:")
        self._line(depth + 1, "log.append(str(error))")
        return None

    def _finally(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._block(depth + 1, tag, deep + 1)
        self._line(depth, "finally:")
        self._block(depth + 1, tag, deep + 1)
        if self._chance.random() < 0.1 and tag == "b" and self._door != "loop":
            self._line(depth + 1, "return log")

    def _except(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._block(depth + 1, tag, deep + 1)
        if self._failing and self._chance.random() < 0.7:
            self._line(depth + 1, f"log.append({self._call(tag, 'fail')})")
        self._line(depth, "except Exception as error:")
        self._line(depth + 1, "log.append(type(error).__name__)")
        self._block(depth + 1, tag, deep + 1)
        if self._failing and self._chance.random() < 0.2:
            self._line(depth + 1, "raise")

    def _with(self, depth: int, tag: str, deep: int) -> None:
        kind = self._chance.choice(("scope", "scope", "Object", "Hiding"))
        word = f"{self._def}with"
        self._line(depth, f'{word} {kind}("{tag}", {self._next()}) as one:')
        self._line(depth + 1, "log.append(one)")
        self._block(depth + 1, tag, deep + 1)

    def _stack(self, depth: int, tag: str, deep: int) -> None:
        kind, push = "ExitStack", "callback"
        if self._async:
            kind, push = "AsyncExitStack", "push_async_callback"
        self._line(depth, f"{self._def}with contextlib.{kind}() as stack:")
        self._line(depth + 1, f'stack.{push}(call, "{tag}", {self._next()})')
        self._block(depth + 1, tag, deep + 1)

    def _generator(self, depth: int, tag: str, deep: int) -> None:
        name = f"parts{self._next()}"
        self._line(depth, f"{self._def}def {name}():")
        self._line(depth + 1, "try:")
        self._line(depth + 2, f"yield {self._call(tag)}")
        self._line(depth + 2, f"yield {self._call(tag)}")
        self._line(depth + 1, "finally:")
        self._line(depth + 2, f"log.append({self._call(tag)})")
        closing = "contextlib.aclosing" if self._async else "contextlib.closing"
        self._line(depth, f"{self._def}with {closing}({name}()) as parts:")
        self._line(depth + 1, f"{self._def}for part in parts:")
        self._line(depth + 2, "log.append(part)")
        self._block(depth + 2, tag, deep + 2)
        if self._chance.random() < 0.3:
            self._line(depth + 2, "break")

    def _loop(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, f"for turn in range({self._chance.randint(1, 2)}):")
        self._block(depth + 1, tag, deep + 1)
        if self._chance.random() < 0.3:
            self._line(depth + 1, self._chance.choice(("break", "continue")))

    def _tries(self, depth: int, tag: str, deep: int) -> None:
        if not self._failing:
            return self._append(depth, tag, deep)
        self._line(depth, "for attempt in range(2):")
        self._line(depth + 1, "try:")
        self._line(depth + 2, f"log.append({self._call(tag, 'fail')})")
        self._line(depth + 2, "break")
        self._line(depth + 1, "except ConnectionError:")
        self._line(depth + 2, f"log.append({self._call(tag)})")
        return None

    def _saga(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "undo = []")
        self._line(depth, "try:")
        for _ in range(self._chance.randint(1, 2)):
            self._line(depth + 1, f"undo.append({self._call(tag)})")
        self._block(depth + 1, tag, deep + 1)
        if self._failing:
            self._line(depth + 1, f"log.append({self._call(tag, 'fail')})")
        self._line(depth, "except Exception:")
        self._line(depth + 1, "for one in reversed(undo):")
        self._line(depth + 2, f"log.append({self._call(tag, 'call')})")
        if self._failing and self._chance.random() < 0.3:
            self._line(depth + 1, "raise")

    def _swallow(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._block(depth + 1, tag, deep + 1)
        self._line(depth, "except BaseException as error:")
        self._line(depth + 1, "log.append(type(error).__name__)")
        self._block(depth + 1, tag, deep + 1)

    def _hide(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._line(depth + 1, "try:")
        self._block(depth + 2, tag, deep + 2)
        self._line(depth + 1, "except BaseException as error:")
        self._line(depth + 2, 'raise ValueError("hidden") from error')
        self._line(depth, "except ValueError:")
        self._line(depth + 1, 'log.append("hidden")')

    # Async ones

    def _gather(self, depth: int, tag: str, deep: int) -> None:
        made = [self._bare(tag, "call", "pay", "fail") for _ in range(self._chance.randint(1, 3))]
        if self._chance.random() < 0.4:
            at = self._chance.randrange(len(made) + 1)
            made.insert(at, self._bare(tag, "wait"))
        named = ", ".join(made)
        self._line(depth, f"done = await asyncio.gather({named}, return_exceptions=True)")
        self._line(depth, "log.append([str(one) for one in done])")

    def _group(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "async with asyncio.TaskGroup() as group:")
        kinds = ["call", "call", "pay", "wait"]
        for _ in range(self._chance.randint(2, 3)):
            number = self._next()
            self._line(depth + 1, f"task{number} = group.create_task({self._bare(tag, *kinds)})")
        self._line(depth, f"log.append(await task{number})")

    def _failed_group(self, depth: int, tag: str, deep: int) -> None:
        self._line(depth, "try:")
        self._line(depth + 1, "async with asyncio.TaskGroup() as group:")
        self._line(depth + 2, f"group.create_task({self._bare(tag, 'fail', 'refused')})")
        self._line(depth, "except* ConnectionError as errors:")
        self._line(depth + 1, "log.append([str(one) for one in errors.exceptions])")
        self._line(depth + 1, f"log.append({self._call(tag)})")

    def _branches(self, depth: int, tag: str, deep: int) -> None:
        names, before = [], self._failing
        tolerant = self._chance.random() < 0.5
        self._failing = tolerant
        for _ in range(2):
            number = self._next()
            names.append(f"branch{number}()")
            self._line(depth, f"async def branch{number}():")
            self._line(depth + 1, "log = []")
            self._block(depth + 1, f"{tag}.{number}", deep + 1)
            self._line(depth + 1, "return log")
        self._failing = before
        more = ", return_exceptions=True" if tolerant else ""
        self._line(depth, f"done = await surehold.gather({', '.join(names)}{more})")
        self._line(depth, "log.append([str(one) for one in done])")

    # Those of one door

    def _child(self, depth: int, tag: str, deep: int) -> None:
        number = self._next()
        self._line(depth, f'@surehold.workflow(name="child{number}")')
        self._line(depth, f"{self._def}def child{number}():")
        self._line(depth + 1, "log = []")
        self._block(depth + 1, tag, deep + 1)
        self._line(depth + 1, "return log")
        self._line(depth, f"log.append({self._await}child{number}())")

    def _each(self, depth: int, tag: str, deep: int) -> None:
        number = self._next()
        items = [number * 10 + at for at in range(self._chance.randint(1, 3))]
        name = f"item{number}"
        self._line(depth, f"{self._def}for {name} in run.each({items}):")
        self._line(depth + 1, f'run.state["n"] = run.state.get("n", 0) + {name}')
        self._line(depth + 1, "held.add(1)")
        self._block(depth + 1, tag, deep + 1)
        self._line(depth + 1, f'run.state.setdefault("items", []).append({name})')
        self._line(depth + 1, f"held.add({name})")
        way = self._chance.random()
        if way < 0.25:
            self._line(depth + 1, f"if {name} == {self._chance.choice(items)}:")
            self._line(depth + 2, self._chance.choice(("break", "continue")))
            self._line(depth + 1, f'run.state["n"] += {number}')
