"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# Coverage, a second worker and a busy disk make one example slow by chance; pytest-timeout
# catches what is really stuck.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
