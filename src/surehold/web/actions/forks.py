"""The action that forks a run with other values."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.doors.resume import fork_with
from surehold.engine.repair import state_text
from surehold.engine.runs import note_action
from surehold.errors import UsageError
from surehold.web.actions.plan import Action, ActionPlan, checkpoint_in, page_of, shell
from surehold.web.forms import Field, Given, fields_of, read_changes, read_json


class ForkAction(Action):
    """Begins a new run with the state of a checkpoint, as it is or edited."""

    def ask(self, given: Given) -> ActionPlan:
        header = checkpoint_in(self._site, given)
        values = self._values(header)
        fields = fields_of(values)
        left_out = len(values) - len(fields)
        return ActionPlan(
            title=f"Fork {header.run_id} at step {header.step}",
            what=[
                f"A new run begins with the state of step {header.step}, as edited below.",
                "It inherits no effects: it calls what it needs again. The fork of a workflow"
                " has the recorded calls, unless its arguments change.",
                f"Run {header.run_id} stays as it is.",
            ],
            command=shell("fork", header.id, "--set", "KEY=VALUE"),
            python=f"manager.fork_from_checkpoint({header.id!r})",
            button="Fork",
            hidden={"checkpoint": header.id},
            fields=[
                Field(
                    name="run_id",
                    label="Run id of the fork",
                    value=self._free_id(header.run_id),
                    help="Empty: a new one is made.",
                ),
                *fields,
                Field(
                    name="edit",
                    label="Other values as JSON",
                    value="{}",
                    kind="lines",
                    rows=3,
                    help='An object, such as {"topic": "kelp"}; keys that are not named stay.'
                    + (f" {left_out} keys of the state have no field here." if left_out else ""),
                ),
            ],
            back=page_of(header.run_id, header.seq),
        )

    def do(self, given: Given, who: str) -> str:
        header = checkpoint_in(self._site, given)
        others = read_json(given.get("edit") or "{}", "the object of other values")
        if not isinstance(others, dict):
            raise UsageError("the other values are not JSON object", hint='as {"topic": "kelp"}')
        edit = {**read_changes(self._values(header), given), **others}
        made = fork_with(self._site.manager, header, edit, given.get("run_id") or None)
        changed = f", {', '.join(edit)} changed" if edit else ""
        did = f"forked it from {header.run_id}@{header.step}{changed}"
        note_action(self._site.manager, made.run_id, did, who, step=header.step)
        return page_of(made.run_id)

    def _free_id(self, run_id: str) -> str:
        """The first id of `RUN-2`, `RUN-3` and so on that no run has."""
        reader = self._site.manager.reader
        tried = (f"{run_id}-{number}" for number in range(2, 100))
        return next((one for one in tried if reader.run(one) is None), "")

    def _values(self, header: Header) -> dict[str, Any]:
        """The values of the state that plain JSON can express, by key."""
        text = state_text(self._site.manager.reader.load_visible(header).texts)
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {
            key: msgspec.json.decode(bytes(part))
            for key, part in parts.items()
            if b'"$t"' not in bytes(part)
        }
