"""Plans of actions: their effect, the equal command, and the confirming form."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from urllib.parse import urlencode

import msgspec

from surehold.core.records import Header
from surehold.storage.base import RunInfo
from surehold.views.run import run_of
from surehold.web.drawing import GraphDrawing
from surehold.web.forms import Field, Given
from surehold.web.site import Site


class ActionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A preview of an action."""

    title: str
    what: list[str]
    command: str
    python: str
    button: str = ""
    """The text that confirms; none if there is nothing to confirm."""
    hidden: dict[str, str] = {}
    fields: list[Field] = []
    picture: GraphDrawing | None = None
    """The graph of the run, with what will be executed."""
    table: list[tuple[str, ...]] = []
    heads: tuple[str, ...] = ()
    left_out: int = 0
    problem: str = ""
    """The reason why it cannot be done; there is no button then."""
    is_fine: bool = False
    """True if the problem is that there is nothing to do."""
    previews: bool = False
    """True if the fields are sent to the page itself first, to see what they change."""
    back: str = ""
    """The address of the page that the action belongs to."""
    destroys: bool = False
    """True if what it does cannot be taken back."""
    next: tuple[str, str] | None = None
    """The address and the text of an action that follows from this one."""


class Action(ABC):
    """One action."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @abstractmethod
    def ask(self, given: Given) -> ActionPlan:
        """State what will happen; nothing is changed."""

    @abstractmethod
    def do(self, given: Given, who: str) -> str:
        """Do it in the name of *who*, and return the address that shows the outcome."""


def shell(*words: str) -> str:
    """The command with these words, as a shell takes it."""
    return shlex.join(["surehold", *words])


def page_of(run_id: str, at: int | None = None) -> str:
    """The address of a run, with a record chosen."""
    return f"/run?{urlencode({'id': run_id} | ({'at': at} if at is not None else {}))}"


def run_in(site: Site, given: Given) -> RunInfo:
    """The run that a form or an address names."""
    return run_of(site.manager, given.get("id", ""))


def checkpoint_in(site: Site, given: Given) -> Header:
    """The checkpoint that a form or an address names."""
    return site.finder.checkpoint(given.get("checkpoint", ""))
