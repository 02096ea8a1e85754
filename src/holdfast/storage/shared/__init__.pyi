from holdfast.storage.shared.repair import Inspection as Inspection
from holdfast.storage.shared.repair import Repairable as Repairable
from holdfast.storage.shared.repair import check_head as check_head
from holdfast.storage.shared.repair import checked_run as checked_run
from holdfast.storage.shared.repair import moment as moment
