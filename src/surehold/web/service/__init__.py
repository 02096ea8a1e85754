"""Runs over HTTP: start, follow, answer and cancel them, from any language.

Holds the requests, their tokens and the OpenAPI document. What the page shows belongs beside
this room, and what executes a run to `executors`.
"""

from __future__ import annotations

from surehold.web.service.application import service_app as service_app
from surehold.web.service.openapi import openapi_of as openapi_of
from surehold.web.service.serving import serve_runs as serve_runs
from surehold.web.service.tokens import Caller as Caller
from surehold.web.service.tokens import Tokens as Tokens
from surehold.web.service.typescript import types_of as types_of
