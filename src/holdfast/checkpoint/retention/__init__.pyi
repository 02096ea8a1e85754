from holdfast.checkpoint.retention import bulk as bulk
from holdfast.checkpoint.retention.bulk import Freed as Freed
from holdfast.checkpoint.retention.bulk import plan_freeing as plan_freeing
from holdfast.checkpoint.retention.erase import Erasure as Erasure
from holdfast.checkpoint.retention.live import RetentionManager as RetentionManager
from holdfast.checkpoint.retention.marks import Marks as Marks
