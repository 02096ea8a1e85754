from surehold.checkpoint.retention import bulk as bulk
from surehold.checkpoint.retention.bulk import Freed as Freed
from surehold.checkpoint.retention.bulk import plan_freeing as plan_freeing
from surehold.checkpoint.retention.erase import Erasure as Erasure
from surehold.checkpoint.retention.live import RetentionManager as RetentionManager
from surehold.checkpoint.retention.marks import Marks as Marks
