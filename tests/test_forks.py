"""Calls around a fork, of functions that their modules keep."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold.forks import register_at_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_functions_are_called_around_a_fork() -> None:
    code = """
import os
from surehold.forks import register_at_fork

def before(): told.append("before")
def in_parent(): told.append("parent")
def in_child(): told.append("child")

told = []
register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
child = os.fork()
if not child:
    os._exit(told != ["before", "child"])
print(told, os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['before', 'parent'] 0\n"


def test_a_function_is_not_kept_alive() -> None:
    module: dict[str, Any] = {}
    exec("def renew(): raise AssertionError", module)
    known = weakref.ref(module["renew"])
    register_at_fork(after_in_child=module["renew"])
    module.clear()
    gc.collect()
    assert known() is None


def test_a_function_that_no_module_keeps_is_refused() -> None:
    with pytest.raises(TypeError, match="no module keeps"):
        register_at_fork(after_in_child=lambda: None)


def test_no_other_module_gives_python_a_function_to_keep() -> None:
    source = Path(surehold.__file__).parent
    told = {
        path.name for path in source.rglob("*.py") if "os.register_at_fork(" in path.read_text()
    }
    assert told == {"forks.py"}
