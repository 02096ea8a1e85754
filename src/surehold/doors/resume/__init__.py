"""Resume, fork and rewind: where a run continues, and with what."""

from __future__ import annotations

from surehold.doors.resume.checking import CheckVerdict as CheckVerdict
from surehold.doors.resume.checking import check_run as check_run
from surehold.doors.resume.entry_points import Resumable as Resumable
from surehold.doors.resume.entry_points import entry_point_of as entry_point_of
from surehold.doors.resume.entry_points import load_module as load_module
from surehold.doors.resume.entry_points import load_object as load_object
from surehold.doors.resume.entry_points import load_resumable as load_resumable
from surehold.doors.resume.entry_points import module_of_caller as module_of_caller
from surehold.doors.resume.entry_points import module_that_makes as module_that_makes
from surehold.doors.resume.explanation import IN_DOUBT as IN_DOUBT
from surehold.doors.resume.explanation import ResumePlan as ResumePlan
from surehold.doors.resume.explanation import explain as explain
from surehold.doors.resume.forks import Parting as Parting
from surehold.doors.resume.forks import edited as edited
from surehold.doors.resume.forks import fork as fork
from surehold.doors.resume.forks import fork_with as fork_with
from surehold.doors.resume.forks import part as part
from surehold.doors.resume.given_input import check_begun_by as check_begun_by
from surehold.doors.resume.given_input import check_input as check_input
from surehold.doors.resume.inside import TOOL_FAILED_NAME as TOOL_FAILED_NAME
from surehold.doors.resume.inside import RunHere as RunHere
from surehold.doors.resume.inside import run_inside as run_inside
from surehold.doors.resume.progress import Now as Now
from surehold.doors.resume.progress import Progress as Progress
from surehold.doors.resume.progress import Shape as Shape
from surehold.doors.resume.progress import difference as difference
from surehold.doors.resume.progress import read_progress as read_progress
from surehold.doors.resume.progress import spent_until as spent_until
from surehold.doors.resume.progress import write_progress as write_progress
from surehold.doors.resume.replaying import ReplayVerdict as ReplayVerdict
from surehold.doors.resume.replaying import replay_run as replay_run
from surehold.doors.resume.rewind import across_branches as across_branches
from surehold.doors.resume.rewind import done_for_good as done_for_good
from surehold.doors.resume.rewind import of_the_run as of_the_run
from surehold.doors.resume.rewind import rewind_run as rewind_run
from surehold.doors.resume.target import Target as Target
from surehold.doors.resume.target import find_run as find_run
from surehold.doors.resume.target import find_target as find_target
from surehold.doors.resume.target import no_run as no_run
