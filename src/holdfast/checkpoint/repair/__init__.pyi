from holdfast.checkpoint.repair.apply import OnCorrupt as OnCorrupt
from holdfast.checkpoint.repair.apply import Repairer as Repairer
from holdfast.checkpoint.repair.apply import RepairReport as RepairReport
from holdfast.checkpoint.repair.apply import RunRepair as RunRepair
