"""Agents: the cycle of plan, model call, tools and checkpoint.

Models and tools have rooms of their own.
"""

from __future__ import annotations

from surehold.agents.agent.agent import Agent as Agent
from surehold.agents.agent.children import Parent as Parent
from surehold.agents.agent.children import managers_of as managers_of
from surehold.agents.agent.config import AgentConfig as AgentConfig
from surehold.agents.agent.result import AgentResult as AgentResult
from surehold.agents.agent.state_mapping import usage_of as usage_of
