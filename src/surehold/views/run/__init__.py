"""One run: a window of its steps, its overview, its strip and its outcome.

What compares two runs, and lists of runs, belong beside this room.
"""

from __future__ import annotations

from surehold.views.run.calls import answer_of as answer_of
from surehold.views.run.calls import asked_in as asked_in
from surehold.views.run.calls import call_words as call_words
from surehold.views.run.calls import calls_of as calls_of
from surehold.views.run.calls import turns_of_calls as turns_of_calls
from surehold.views.run.calls import without_begins as without_begins
from surehold.views.run.outcome import Accepted as Accepted
from surehold.views.run.outcome import Code as Code
from surehold.views.run.outcome import CodeList as CodeList
from surehold.views.run.outcome import RunOutcome as RunOutcome
from surehold.views.run.outcome import is_over as is_over
from surehold.views.run.outcome import read_outcome as read_outcome
from surehold.views.run.overview import MessagePlace as MessagePlace
from surehold.views.run.overview import Overview as Overview
from surehold.views.run.overview import ShownChange as ShownChange
from surehold.views.run.overview import by_list as by_list
from surehold.views.run.overview import holder_of as holder_of
from surehold.views.run.overview import marked as marked
from surehold.views.run.overview import places_of as places_of
from surehold.views.run.overview import places_of_calls as places_of_calls
from surehold.views.run.overview import read_overview as read_overview
from surehold.views.run.overview import shown_change as shown_change
from surehold.views.run.overview import step_words as step_words
from surehold.views.run.overview import with_old as with_old
from surehold.views.run.sharing import as_markdown as as_markdown
from surehold.views.run.strip import Past as Past
from surehold.views.run.strip import Pasts as Pasts
from surehold.views.run.strip import StripStep as StripStep
from surehold.views.run.strip import facts_of_nodes as facts_of_nodes
from surehold.views.run.strip import in_buckets as in_buckets
from surehold.views.run.strip import nodes_of as nodes_of
from surehold.views.run.strip import spending as spending
from surehold.views.run.window import RunView as RunView
from surehold.views.run.window import read_run as read_run
from surehold.views.run.window import run_of as run_of
