"""Models: the port, the providers, prices."""

from __future__ import annotations

from surehold.agents.models.calls import ask as ask
from surehold.agents.models.model import VARIABLE as VARIABLE
from surehold.agents.models.model import Message as Message
from surehold.agents.models.model import Model as Model
from surehold.agents.models.model import Reply as Reply
from surehold.agents.models.model import ToolCall as ToolCall
from surehold.agents.models.model import ToolSpec as ToolSpec
from surehold.agents.models.model import open_model as open_model
from surehold.agents.models.model import register_provider as register_provider
from surehold.agents.models.prices import Prices as Prices
from surehold.agents.models.prices import cost_of as cost_of
from surehold.agents.models.prices import shown as shown
