from holdfast.runtime.stop.stop_requests import InterruptMode as InterruptMode
from holdfast.runtime.stop.stop_requests import InterruptReason as InterruptReason
from holdfast.runtime.stop.stop_requests import StopRequests as StopRequests
from holdfast.runtime.stop.stop_scope import StopScope as StopScope
from holdfast.runtime.stop.stop_scope import current_stop_scope as current_stop_scope
