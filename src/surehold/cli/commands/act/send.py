"""`surehold send`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.engine.runs import send as send_message


class Sent(ui.Document, kw_only=True, tag="sent"):
    """``send``"""

    run_id: str
    topic: str
    value: msgspec.Raw


@ui.command
def send(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(metavar="RUN", help="The run that receives it.")],
    topic: Annotated[str, ui.Argument(help="The topic that the run receives.")],
    value: Annotated[str, ui.Argument(help="The message; JSON or text.")] = "null",
    key: Annotated[
        str | None, ui.Option(help="An idempotency key: sent again, the message is dropped.")
    ] = None,
) -> None:
    """Send a message to a run, which is kept until the run receives it.

    Nothing is executed here; a worker continues a queued run that waits for the message.
    """
    run_id = cli.finder.run(run).run_id
    given = ui.read_value(value)
    send_message(run_id, topic, given, idempotency_key=key, by=cli.who, storage=cli.manager)
    document = Sent(run_id=run_id, topic=topic, value=ui.raw(given))
    told = f" {topic}: sent {ui.value_text(given)}"
    cli.give(document, lambda: [ui.Line.of(ui.Cell(run_id, "bold"), told)])
