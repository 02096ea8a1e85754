"""The page: runs, steps, questions and storage in a browser, and the same as JSON.

Server-rendered, in the wheel, offline. What reads a journal belongs to `views`;
the documents under `/api` are those that the commands print with ``--json``.
"""

from __future__ import annotations

from importlib.util import find_spec

from surehold.errors import MissingExtraError

if missing := [
    name for name in ("starlette", "uvicorn", "jinja2", "markdown_it") if find_spec(name) is None
]:
    raise MissingExtraError(
        f"the page needs {', '.join(missing)}", hint="pip install 'surehold[web]'"
    )

from surehold.web.application import app as app
from surehold.web.server import serve as serve
from surehold.web.single_file import run_file as run_file
