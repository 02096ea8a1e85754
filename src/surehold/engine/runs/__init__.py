"""A run that this process holds: lease, position, effects, questions, stop."""

from __future__ import annotations

from surehold.engine.runs.effect_log import Ledger as Ledger
from surehold.engine.runs.effect_log import Spot as Spot
from surehold.engine.runs.effect_log import in_doubt as in_doubt
from surehold.engine.runs.effect_log import past_step as past_step
from surehold.engine.runs.effect_log import permitted as permitted
from surehold.engine.runs.effect_log import warn_in_doubt as warn_in_doubt
from surehold.engine.runs.leaving import Leaving as Leaving
from surehold.engine.runs.migrate import Migrated as Migrated
from surehold.engine.runs.migrate import migrate_run as migrate_run
from surehold.engine.runs.note_views import NoteView as NoteView
from surehold.engine.runs.note_views import view_note as view_note
from surehold.engine.runs.open_run import OpenRun as OpenRun
from surehold.engine.runs.open_run import check_door as check_door
from surehold.engine.runs.open_run import draft_at as draft_at
from surehold.engine.runs.open_run import draft_of_state as draft_of_state
from surehold.engine.runs.open_run import taken_over as taken_over
from surehold.engine.runs.questions import interrupt as interrupt
from surehold.engine.runs.status import SHOWN_STATUSES as SHOWN_STATUSES
from surehold.engine.runs.status import STORED_AS_RUNNING as STORED_AS_RUNNING
from surehold.engine.runs.status import UNDER_WAY as UNDER_WAY
from surehold.engine.runs.status import runs_with_status as runs_with_status
from surehold.engine.runs.status import status_of_run as status_of_run
from surehold.engine.runs.stop import InterruptMode as InterruptMode
from surehold.engine.runs.stop import InterruptReason as InterruptReason
from surehold.engine.runs.stop import StopRequests as StopRequests
from surehold.engine.runs.stop import StopScope as StopScope
from surehold.engine.runs.stop import hearing as hearing
from surehold.engine.runs.waiting import Waiting as Waiting
from surehold.engine.runs.waiting import answer as answer
from surehold.engine.runs.waiting import approve as approve
from surehold.engine.runs.waiting import check_fits as check_fits
from surehold.engine.runs.waiting import check_not_held as check_not_held
from surehold.engine.runs.waiting import ledger_of as ledger_of
from surehold.engine.runs.waiting import open_notes as open_notes
from surehold.engine.runs.waiting import outside as outside
from surehold.engine.runs.waiting import pending as pending
from surehold.engine.runs.waiting import questions_of as questions_of
from surehold.engine.runs.waiting import reject as reject
from surehold.engine.runs.waiting import resolve as resolve
from surehold.engine.runs.waiting import waiting_inside as waiting_inside
from surehold.engine.runs.waiting import waiting_now as waiting_now
from surehold.engine.runs.waiting import waiting_of as waiting_of
