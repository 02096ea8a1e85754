"""OpenAI Agents SDK: recorded calls of agents, sessions, a store of paused runs."""

from __future__ import annotations

from surehold.lazy import extra

with extra("openai-agents"):
    from surehold.integrations.calls import CallOptions as CallOptions
    from surehold.integrations.calls import idempotency_key as idempotency_key
    from surehold.integrations.openai_agents.run_states import PausedRun as PausedRun
    from surehold.integrations.openai_agents.run_states import RunClaim as RunClaim
    from surehold.integrations.openai_agents.run_states import (
        SureholdRunStates as SureholdRunStates,
    )
    from surehold.integrations.openai_agents.runner import SureholdRunner as SureholdRunner
    from surehold.integrations.openai_agents.sessions import SureholdSession as SureholdSession
