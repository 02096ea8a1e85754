"""The state graph: nodes, edges, the loop that runs them.

Choosing where to resume belongs to `doors.resume`.
"""

from __future__ import annotations

from surehold.doors.graph.chain import process_chain as process_chain
from surehold.doors.graph.compiled import Plan as Plan
from surehold.doors.graph.conditional import process_conditional as process_conditional
from surehold.doors.graph.config import CheckpointConfig as CheckpointConfig
from surehold.doors.graph.config import GraphConfig as GraphConfig
from surehold.doors.graph.edges import all_of as all_of
from surehold.doors.graph.edges import any_of as any_of
from surehold.doors.graph.edges import key_equals as key_equals
from surehold.doors.graph.edges import key_exists as key_exists
from surehold.doors.graph.edges import not_ as not_
from surehold.doors.graph.graph import StateGraph as StateGraph
from surehold.doors.graph.loop import Loop as Loop
from surehold.doors.graph.node_result import EndRun as EndRun
from surehold.doors.graph.nodes import ChainNode as ChainNode
from surehold.doors.graph.nodes import ConditionalNode as ConditionalNode
from surehold.doors.graph.nodes import ParallelNode as ParallelNode
from surehold.doors.graph.parallel import process_parallel as process_parallel
from surehold.doors.graph.runner import NOTHING as NOTHING
from surehold.doors.graph.runner import answers_by_id as answers_by_id
from surehold.doors.graph.runner import entry_draft as entry_draft
