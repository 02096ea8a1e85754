from holdfast.executors.driving import Driven as Driven
from holdfast.executors.driving import drive as drive
from holdfast.executors.executor import Executor as Executor
from holdfast.executors.local import LocalExecutor as LocalExecutor
from holdfast.executors.serving import Served as Served
from holdfast.executors.serving import served_by as served_by
from holdfast.executors.worker import Worker as Worker
from holdfast.executors.worker_metrics import serve_metrics as serve_metrics
