from surehold.runtime.stop.stop_requests import InterruptMode as InterruptMode
from surehold.runtime.stop.stop_requests import InterruptReason as InterruptReason
from surehold.runtime.stop.stop_requests import StopRequests as StopRequests
from surehold.runtime.stop.stop_scope import StopScope as StopScope
from surehold.runtime.stop.stop_scope import current_stop_scope as current_stop_scope
