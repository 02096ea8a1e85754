from holdfast.storage.shared.repair_port import Mending as Mending
from holdfast.storage.shared.repair_port import Survey as Survey
from holdfast.storage.shared.repair_port import check_head as check_head
from holdfast.storage.shared.repair_port import checked_run as checked_run
from holdfast.storage.shared.repair_port import holes as holes
from holdfast.storage.shared.repair_port import moment as moment
