from holdfast.runtime.agent.agent import Agent as Agent
from holdfast.runtime.agent.agent import BaseAutonomousAgent as BaseAutonomousAgent
from holdfast.runtime.agent.children import Parent as Parent
from holdfast.runtime.agent.config import AgentConfig as AgentConfig
from holdfast.runtime.agent.config import AutonomousConfig as AutonomousConfig
from holdfast.runtime.agent.result import AgentResult as AgentResult
from holdfast.runtime.agent.resumable import AgentRuns as AgentRuns
from holdfast.runtime.agent.state_mapping import usage_of as usage_of
