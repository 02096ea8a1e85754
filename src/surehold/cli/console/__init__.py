"""The console on a fleet that `surehold repl` opens."""

from __future__ import annotations

from surehold.cli.console import repl as repl
