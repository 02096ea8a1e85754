"""Calls around a fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
