from holdfast.checkpoint.repair.apply import OnCorrupt as OnCorrupt
from holdfast.checkpoint.repair.apply import Repairer as Repairer
from holdfast.checkpoint.repair.apply import RepairReport as RepairReport
from holdfast.checkpoint.repair.apply import RunRepair as RunRepair
from holdfast.checkpoint.repair.verification import RunVerdict as RunVerdict
from holdfast.checkpoint.repair.verification import state_text as state_text
from holdfast.checkpoint.repair.verification import verify_headers as verify_headers
from holdfast.checkpoint.repair.verification import verify_run as verify_run
