"""The action that sends a message to a run."""

from __future__ import annotations

from surehold.engine.runs import send
from surehold.errors import UsageError
from surehold.views.words import read_value
from surehold.web.actions.plan import Action, ActionPlan, page_of, run_in, shell
from surehold.web.forms import Field, Given


class SendAction(Action):
    """Sends a message, which the run keeps until it receives it."""

    def ask(self, given: Given) -> ActionPlan:
        run = run_in(self._site, given)
        return ActionPlan(
            title=f"Send a message to {run.run_id}",
            what=[
                "The message is kept until the run receives one of its topic.",
                "A worker continues a queued run that waits; nothing is executed here.",
            ],
            command=shell("send", run.run_id, "TOPIC", "VALUE"),
            python=f"surehold.send({run.run_id!r}, 'TOPIC', VALUE)",
            button="Send",
            hidden={"id": run.run_id},
            fields=[
                Field(name="topic", label="Topic", value=given.get("topic", "")),
                Field(name="value", label="Message", help="JSON or text."),
                Field(name="key", label="Idempotency key", help="Sent again, it is dropped."),
            ],
            back=page_of(run.run_id),
        )

    def do(self, given: Given, who: str) -> str:
        run = run_in(self._site, given)
        topic = given.get("topic", "").strip()
        if not topic:
            raise UsageError("no topic is given", hint="name the topic that the run receives")
        key, manager = given.get("key") or None, self._site.manager
        send(
            run.run_id,
            topic,
            read_value(given.get("value", "")),
            idempotency_key=key,
            by=who,
            storage=manager,
        )
        return page_of(run.run_id)
