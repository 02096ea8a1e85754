"""The actions that mark a checkpoint: tag and pin."""

from __future__ import annotations

from typing import Any

from surehold.core.records import Header
from surehold.core.state import read_tags
from surehold.engine.commit import mark_note
from surehold.errors import UsageError
from surehold.web.actions.plan import Action, ActionPlan, checkpoint_in, page_of, shell
from surehold.web.forms import Field, Given
from surehold.web.site import Site


class TagAction(Action):
    """Adds tags to a checkpoint, or removes them."""

    def ask(self, given: Given) -> ActionPlan:
        header = checkpoint_in(self._site, given)
        has = f"It has: {', '.join(header.tags) or 'none'}."
        return ActionPlan(
            title=f"Tag step {header.step} of {header.run_id}",
            what=[f"Tags are added to checkpoint {header.id}, or removed from it."],
            command=shell("tag", header.id, "NAME"),
            python=f"manager.tag({header.id!r}, 'NAME')",
            button="Tag",
            hidden={"checkpoint": header.id},
            fields=[
                Field(name="add", label="Add", help="Several are separated by spaces."),
                Field(name="remove", label="Remove", help=has),
            ],
            back=page_of(header.run_id, header.seq),
        )

    def do(self, given: Given, who: str) -> str:
        header = checkpoint_in(self._site, given)
        new = read_tags(given.get("add", "").split())
        old = read_tags(given.get("remove", "").split())
        if not new and not old:
            raise UsageError("no tag is given", hint="name one to add or to remove")
        content = {"add": [*new], "remove": [*old], "by": who}
        return _mark(self._site, header, "tag", new, content)


class PinAction(Action):
    """Pins a checkpoint, or unpins it."""

    def ask(self, given: Given) -> ActionPlan:
        header = checkpoint_in(self._site, given)
        pinned = header.seq in self._site.manager.retention.marks(header.run_id).pinned
        word = "Unpin" if pinned else "Pin"
        does = "The retention rules decide about" if pinned else "No retention rule drops"
        return ActionPlan(
            title=f"{word} step {header.step} of {header.run_id}",
            what=[f"{does} checkpoint {header.id}{' again' if pinned else ''}."],
            command=shell("pin", header.id, *(["--remove"] if pinned else [])),
            python=f"manager.{word.lower()}({header.id!r})",
            button=word,
            hidden={"checkpoint": header.id, "on": "" if pinned else "1"},
            back=page_of(header.run_id, header.seq),
        )

    def do(self, given: Given, who: str) -> str:
        header = checkpoint_in(self._site, given)
        return _mark(self._site, header, "pin", (), {"on": bool(given.get("on")), "by": who})


def _mark(
    site: Site, header: Header, kind: str, tags: tuple[str, ...], content: dict[str, Any]
) -> str:
    note = mark_note(header, kind, tags, content)
    site.manager.append_notes(header.run_id, (note,))
    return page_of(header.run_id, header.seq)
