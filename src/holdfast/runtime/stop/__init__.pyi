from holdfast.runtime.stop.signals import signals_to as signals_to
from holdfast.runtime.stop.stop_requests import InterruptMode as InterruptMode
from holdfast.runtime.stop.stop_requests import InterruptReason as InterruptReason
from holdfast.runtime.stop.stop_requests import StopRequests as StopRequests
