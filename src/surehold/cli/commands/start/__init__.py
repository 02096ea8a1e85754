"""Commands to begin with: demo, init, doctor, selftest, help, schema."""

from __future__ import annotations

from surehold.cli.commands.start.completion import candidates as candidates
from surehold.cli.commands.start.schema import make_schemas as make_schemas
