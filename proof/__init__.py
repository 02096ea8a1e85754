"""What Surehold promises about crashes, damage and races, tried out: ``python -m proof``."""

from __future__ import annotations
