"""`holdfast pending`, `approve`, `reject` and `answer`: what runs wait for, and saying it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.cli.act_documents import Answered, Pending, WaitingRow
from holdfast.cli.act_fork import read_value
from holdfast.cli.calling import Cli, command
from holdfast.cli.documents import raw
from holdfast.cli.output import Cell, Column, Line, Table
from holdfast.cli.parsing import Argument, Option
from holdfast.cli.words import value_text
from holdfast.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.pending import Waiting

__all__ = ["answer", "approve", "pending", "reject"]

_Run = Annotated[str, Argument(metavar="RUN", help="The run that waits.")]
_Id = Annotated[
    str | None, Argument(metavar="ID", help="Which, if several wait; pending lists them.")
]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


@command
def pending(
    cli: Cli,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only this run.")] = None,
) -> None:
    """List what runs wait for: questions, and effects of which nobody knows the outcome."""
    found = _waiting(cli, run)
    rows = [
        WaitingRow(
            run_id=one.run_id,
            id=one.id,
            kind=one.kind,
            step=one.step,
            node=one.node,
            name=one.name,
            question=raw(one.question),
            schema=one.schema,
            problem=one.problem,
            key=one.key,
            policy=one.policy,
            began=one.began,
        )
        for one in found
    ]
    cli.give(Pending(pending=rows), lambda: _table(found))
    if cli.for_people and not found:
        cli.say("nothing waits")


def _table(found: list[Waiting]) -> Iterator[object]:
    if not found:
        return
    columns = (
        Column("run", gives=True),
        Column("id", gives=True),
        Column("what"),
        Column("question", gives=True),
        Column("expects", gives=True),
    )
    rows = [
        [
            Cell(one.run_id, "bold"),
            one.id,
            one.kind if one.kind == "question" else Cell("effect in doubt", "yellow"),
            value_text(one.question) if one.kind == "question" else f"key {one.key}",
            value_text(one.schema, 40) if one.schema else "",
        ]
        for one in found
    ]
    yield Table(columns, rows)


def _waiting(cli: Cli, run: str | None) -> list[Waiting]:
    from holdfast.checkpoint.pending import pending as look

    if run is None:
        return look(storage=cli.manager)
    run_id = cli.finder.run(run).run_id
    return look(run_id, storage=cli.manager)


def _one(cli: Cli, run: str, id: str | None, kind: str | None) -> Waiting:
    """What is meant, of all that the run waits for."""
    found = _waiting(cli, run)
    if id is not None:
        found = [one for one in found if id in (one.id, one.name)]
    elif kind is not None:
        found = [one for one in found if one.kind == kind]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"run {run!r} waits for {len(found)} things",
            hint=f"give the id of one: {', '.join(one.id for one in found)}",
        )
    what = f"{kind or 'nothing'} {id or ''}".strip() if id or kind else "anything"
    raise NotFoundError(
        f"run {run!r} waits for no {what}", hint="holdfast pending lists what waits", run_id=run
    )


@command
def approve(cli: Cli, run: _Run, id: _Id = None) -> None:
    """Answer yes to the question that a run waits for."""
    _say(cli, _one(cli, run, id, "question"), True)


@command
def reject(
    cli: Cli,
    run: _Run,
    id: _Id = None,
    reason: Annotated[
        str | None, Option(help="Why, for an agent or a fleet that asks for approval.")
    ] = None,
) -> None:
    """Answer no to the question that a run waits for."""
    answer = False if reason is None else {"approved": False, "reason": reason}
    _say(cli, _one(cli, run, id, "question"), answer)


@command
def answer(
    cli: Cli,
    run: _Run,
    value: Annotated[
        str | None, Argument(metavar="VALUE", help="The answer; JSON or text.")
    ] = None,
    id: Annotated[str | None, Option("--id", help="Which, if several wait.")] = None,
    repeat: Annotated[
        bool, Option("--repeat", help="The effect did not happen: call it again.")
    ] = False,
    error: Annotated[
        str | None, Option(metavar="TEXT", help="The effect failed with this.")
    ] = None,
) -> None:
    """Answer a question, or tell what became of an effect in doubt.

    Nothing is executed: resume the run to go on with the answer.
    """
    if (value is not None) + repeat + (error is not None) != 1:
        raise UsageError("give one of VALUE, --repeat and --error")
    one = _one(cli, run, id, None)
    if one.kind == "question":
        if value is None:
            raise UsageError(f"{one.id} is a question", hint="give its answer")
        _say(cli, one, read_value(value))
        return
    _tell(cli, one, value, error)


def _say(cli: Cli, one: Waiting, value: Any) -> None:
    from holdfast.checkpoint.pending import resolve

    _check(one, value)
    resolve(one.run_id, one.id, value, storage=cli.manager)
    _give(cli, one, "answered", value)


def _tell(cli: Cli, one: Waiting, value: str | None, error: str | None) -> None:
    from holdfast.checkpoint.pending import resolve

    outcome: Literal["happened", "failed", "repeat"]
    if value is not None:
        resolve(one.run_id, one.id, read_value(value), storage=cli.manager)
        outcome = "happened"
    elif error is not None:
        resolve(one.run_id, one.id, error=error, storage=cli.manager)
        outcome = "failed"
    else:
        resolve(one.run_id, one.id, repeat=True, storage=cli.manager)
        outcome = "repeat"
    _give(cli, one, outcome, read_value(value) if value is not None else error)


def _check(one: Waiting, value: Any) -> None:
    """Refuse what the question's schema plainly does not allow; the node has the last word."""
    schema = one.schema if isinstance(one.schema, Mapping) else {}
    allowed = schema.get("enum")
    wanted = _TYPES.get(str(schema.get("type")))
    wrong = wanted is not None and not isinstance(value, wanted)
    wrong |= schema.get("type") in ("integer", "number") and isinstance(value, bool)
    if wrong or (isinstance(allowed, list) and value not in allowed):
        expects = " or ".join(map(str, allowed)) if allowed else schema.get("type")
        raise UsageError(
            f"{value_text(value)} does not answer {one.id}",
            hint=f"it expects {expects}: holdfast answer {one.run_id} VALUE",
        )


def _give(
    cli: Cli,
    one: Waiting,
    outcome: Literal["answered", "happened", "failed", "repeat"],
    value: Any,
) -> None:
    document = Answered(
        run_id=one.run_id, id=one.id, kind=one.kind, outcome=outcome, value=raw(value)
    )

    def text() -> Iterator[object]:
        said = f" {value_text(value)}" if value is not None else ""
        yield Line.of(Cell(one.run_id, "bold"), f" {one.id}: {outcome}{said}")

    cli.give(document, text)
    if cli.for_people:
        cli.say(Cell(f"holdfast resume {one.run_id} goes on with it", "dim"))
