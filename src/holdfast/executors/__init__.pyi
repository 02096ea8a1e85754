from holdfast.executors.driving import Driven as Driven
from holdfast.executors.driving import drive as drive
from holdfast.executors.executor import Executor as Executor
from holdfast.executors.local import LocalExecutor as LocalExecutor
