"""Retention: which checkpoints stay, applied on save or in bulk.

The rules themselves are pure and belong to `core.policy`.
"""

from __future__ import annotations

from surehold.engine.retention import bulk as bulk
from surehold.engine.retention.bulk import Freed as Freed
from surehold.engine.retention.bulk import plan_freeing as plan_freeing
from surehold.engine.retention.erase import Erasure as Erasure
from surehold.engine.retention.live import RetentionManager as RetentionManager
from surehold.engine.retention.marks import Marks as Marks
