"""A pytest plugin for the tests of Strands: our storage is its storage in files and memory."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from slot_report import IS_STOCK, SlotReport

_report = SlotReport()


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(_report)
    package: Any = importlib.import_module("strands.storage")
    if IS_STOCK:
        _report.counting(package.LocalFileStorage)
        return
    from surehold.integrations.strands import SureholdStorage

    class LocalFileStorage(SureholdStorage):  # a snapshot notes the name of the class
        def __init__(self, base_dir: Any = "./.strands/", **_: Any) -> None:
            super().__init__(f"sqlite:///{base_dir}/ours.db")

    class InMemoryStorage(SureholdStorage):
        def __init__(self) -> None:
            super().__init__("memory://")

    for made in (LocalFileStorage, InMemoryStorage):
        _report.counting(made)
        setattr(package, made.__name__, made)
