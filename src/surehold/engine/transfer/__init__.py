"""Runs on the move: export, import, copy, and the JSON forms of states.

Nothing here decides what to keep.
"""

from __future__ import annotations

from surehold.engine.transfer import runs as runs
from surehold.engine.transfer.encrypt import encrypt_runs as encrypt_runs
from surehold.engine.transfer.json_form import Style as Style
from surehold.engine.transfer.json_form import fleet_status as fleet_status
from surehold.engine.transfer.limits import LIMITS as LIMITS
from surehold.engine.transfer.limits import UNLIMITED as UNLIMITED
from surehold.engine.transfer.limits import ImportLimits as ImportLimits
from surehold.engine.transfer.reseal import Redact as Redact
from surehold.engine.transfer.run_file import Manifest as Manifest
from surehold.engine.transfer.run_file import whole_file as whole_file
from surehold.engine.transfer.runs import json_lines as json_lines
