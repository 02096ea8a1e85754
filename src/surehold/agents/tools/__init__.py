"""Tools: definitions, calls, approvals, signatures."""

from __future__ import annotations

from surehold.agents.tools.approval import PLAN_REVIEW as PLAN_REVIEW
from surehold.agents.tools.approval import TIMED_OUT as TIMED_OUT
from surehold.agents.tools.approval import Approval as Approval
from surehold.agents.tools.approval import ApprovalHandler as ApprovalHandler
from surehold.agents.tools.approval import ApprovalRequest as ApprovalRequest
from surehold.agents.tools.approval import ask_approval as ask_approval
from surehold.agents.tools.approval import expired as expired
from surehold.agents.tools.approval import requests_in as requests_in
from surehold.agents.tools.call import ToolCalls as ToolCalls
from surehold.agents.tools.call import ToolFailure as ToolFailure
from surehold.agents.tools.call import storable as storable
from surehold.agents.tools.call import tool_failure as tool_failure
from surehold.agents.tools.definition import Tool as Tool
from surehold.agents.tools.definition import ToolLike as ToolLike
from surehold.agents.tools.definition import check_tool_name as check_tool_name
from surehold.agents.tools.definition import read_tool as read_tool
from surehold.agents.tools.definition import text_of as text_of
from surehold.agents.tools.definition import tool as tool
from surehold.agents.tools.signature import AnswerFormat as AnswerFormat
from surehold.agents.tools.signature import InputField as InputField
from surehold.agents.tools.signature import OutputField as OutputField
from surehold.agents.tools.signature import Signature as Signature
from surehold.agents.tools.signature import read_signature as read_signature
