"""Recorded programs: model calls of unchanged programs, kept and given back.

`inside` sees the requests, `Recording` decides which answer they get, shelves keep the answers.
Nothing here executes a program's own steps: `surehold exec` starts it as it is.
"""

from __future__ import annotations

from surehold.integrations.recorder.inside import Divergence as Divergence
from surehold.integrations.recorder.inside import Selection as Selection
from surehold.integrations.recorder.launcher import Program as Program
from surehold.integrations.recorder.launcher import ProgramEnd as ProgramEnd
from surehold.integrations.recorder.launcher import changing as changing
from surehold.integrations.recorder.launcher import duration as duration
from surehold.integrations.recorder.launcher import execute as execute
from surehold.integrations.recorder.launcher import replay_program as replay_program
from surehold.integrations.recorder.recording import MatchRules as MatchRules
from surehold.integrations.recorder.recording import Recording as Recording
from surehold.integrations.recorder.savings import GROUPS as GROUPS
from surehold.integrations.recorder.savings import Saving as Saving
from surehold.integrations.recorder.savings import read_savings as read_savings
from surehold.integrations.recorder.sessions import calls_in as calls_in
from surehold.integrations.recorder.sessions import is_file as is_file
from surehold.integrations.recorder.sessions import offline as offline
from surehold.integrations.recorder.sessions import record as record
from surehold.integrations.recorder.sessions import record_in_file as record_in_file
from surehold.integrations.recorder.sessions import replay as replay
