"""Pure rules: retention, triggers, redaction, endings, drift.

A policy is a function from facts to a plan; carrying it out belongs to other layers.
"""

from __future__ import annotations

from surehold.core.policy.answer_schema import describe_schema as describe_schema
from surehold.core.policy.answer_schema import validate_answer as validate_answer
from surehold.core.policy.attempts import RetryOptions as RetryOptions
from surehold.core.policy.attempts import RetryPolicy as RetryPolicy
from surehold.core.policy.attempts import may_help as may_help
from surehold.core.policy.attempts import read_policy as read_policy
from surehold.core.policy.attempts import refuse_options as refuse_options
from surehold.core.policy.drift import Detector as Detector
from surehold.core.policy.drift import DriftMonitor as DriftMonitor
from surehold.core.policy.drift import DriftPolicy as DriftPolicy
from surehold.core.policy.drift import DriftReport as DriftReport
from surehold.core.policy.drift import Finding as Finding
from surehold.core.policy.drift import Observation as Observation
from surehold.core.policy.drift import Sensitivity as Sensitivity
from surehold.core.policy.drift import check_policy as check_policy
from surehold.core.policy.drift_detectors import Invariants as Invariants
from surehold.core.policy.drift_detectors import default_detectors as default_detectors
from surehold.core.policy.endings import OF_THE_RUN as OF_THE_RUN
from surehold.core.policy.endings import Ending as Ending
from surehold.core.policy.endings import Outcome as Outcome
from surehold.core.policy.endings import RunFacts as RunFacts
from surehold.core.policy.endings import decisive as decisive
from surehold.core.policy.endings import driven_by as driven_by
from surehold.core.policy.endings import ending_of as ending_of
from surehold.core.policy.expiry import EXPIRABLE as EXPIRABLE
from surehold.core.policy.expiry import Expiry as Expiry
from surehold.core.policy.queues import ANSWERED as ANSWERED
from surehold.core.policy.queues import CANCEL as CANCEL
from surehold.core.policy.queues import CANCELLED as CANCELLED
from surehold.core.policy.queues import DEAD as DEAD
from surehold.core.policy.queues import MESSAGE as MESSAGE
from surehold.core.policy.queues import QUEUED as QUEUED
from surehold.core.policy.queues import EntryState as EntryState
from surehold.core.policy.queues import QueueChange as QueueChange
from surehold.core.policy.queues import QueueEntry as QueueEntry
from surehold.core.policy.queues import QueueInfo as QueueInfo
from surehold.core.policy.queues import QueueSettings as QueueSettings
from surehold.core.policy.queues import Submission as Submission
from surehold.core.policy.queues import Unserved as Unserved
from surehold.core.policy.queues import WorkerProcess as WorkerProcess
from surehold.core.policy.queues import after_change as after_change
from surehold.core.policy.queues import after_death as after_death
from surehold.core.policy.queues import after_drive as after_drive
from surehold.core.policy.queues import allowed as allowed
from surehold.core.policy.queues import change_of as change_of
from surehold.core.policy.queues import choose as choose
from surehold.core.policy.queues import next_rank as next_rank
from surehold.core.policy.queues import order_of as order_of
from surehold.core.policy.queues import target_of as target_of
from surehold.core.policy.redaction import KEYS as KEYS
from surehold.core.policy.redaction import PATTERNS as PATTERNS
from surehold.core.policy.redaction import RedactionRules as RedactionRules
from surehold.core.policy.redaction import Redactor as Redactor
from surehold.core.policy.redaction import make_rules as make_rules
from surehold.core.policy.retention import Decision as Decision
from surehold.core.policy.retention import drop_beyond_last as drop_beyond_last
from surehold.core.policy.retention import newest_keys as newest_keys
from surehold.core.policy.retention import plan_prune as plan_prune
from surehold.core.policy.rules import Age as Age
from surehold.core.policy.rules import Rules as Rules
from surehold.core.policy.text_redaction import redact_text as redact_text
from surehold.core.policy.triggers import Clockwork as Clockwork
from surehold.core.policy.triggers import Triggers as Triggers
from surehold.core.policy.triggers import check_above_zero as check_above_zero
from surehold.core.policy.triggers import is_duration as is_duration
