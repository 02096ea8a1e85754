"""Repair of damaged runs: plan, apply, report.

Reading bytes off a damaged medium belongs to that medium's own room.
"""

from __future__ import annotations

from surehold.engine.repair.apply import OnCorrupt as OnCorrupt
from surehold.engine.repair.apply import Repairer as Repairer
from surehold.engine.repair.apply import RepairReport as RepairReport
from surehold.engine.repair.apply import RunRepair as RunRepair
from surehold.engine.repair.verification import RunVerdict as RunVerdict
from surehold.engine.repair.verification import state_text as state_text
from surehold.engine.repair.verification import verify_headers as verify_headers
from surehold.engine.repair.verification import verify_missing as verify_missing
from surehold.engine.repair.verification import verify_run as verify_run
