from holdfast.checkpoint.transfer import runs as runs
from holdfast.checkpoint.transfer.container import Manifest as Manifest
from holdfast.checkpoint.transfer.container_reader import LIMITS as LIMITS
from holdfast.checkpoint.transfer.container_reader import ImportLimits as ImportLimits
from holdfast.checkpoint.transfer.json_form import Style as Style
from holdfast.checkpoint.transfer.json_form import fleet_status as fleet_status
from holdfast.checkpoint.transfer.reseal import Redact as Redact
