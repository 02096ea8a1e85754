"""The page: runs, steps, questions and storage in a browser, and the same as JSON.

Server-rendered, in the wheel, offline. What reads a journal belongs to `views`;
the documents under `/api` are those that the commands print with ``--json``. Requests of programs,
with tokens and roles, belong to `service`.
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
from surehold.web.service import Caller as Caller
from surehold.web.service import Tokens as Tokens
from surehold.web.service import openapi_of as openapi_of
from surehold.web.service import serve_runs as serve_runs
from surehold.web.service import service_app as service_app
from surehold.web.service import types_of as types_of
from surehold.web.single_file import run_file as run_file
