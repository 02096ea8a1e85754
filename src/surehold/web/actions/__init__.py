"""Actions of the page: each states its effect, is confirmed once, notes its user.

What only reads belongs to `views`; what an action does belongs to `engine` and `doors`.
"""

from __future__ import annotations

from surehold.web.actions.handler import Actions as Actions
