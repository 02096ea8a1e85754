from holdfast.runtime.stop.stop_requests import InterruptMode as InterruptMode
from holdfast.runtime.stop.stop_requests import InterruptReason as InterruptReason
from holdfast.runtime.stop.stop_requests import StopRequests as StopRequests
