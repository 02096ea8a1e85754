"""The OpenAPI document of the requests, with the arguments of the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from surehold.executors import Startable, startables
from surehold.web.api import MOST
from surehold.web.service.endpoints import ENDPOINTS, KEYED, Endpoint
from surehold.web.site import Refusal

_REF = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The request is wrong.",
    "401": "The token is not known.",
    "403": "The caller's role does not allow it.",
    "404": "There is no such run, question or code.",
    "409": "The run was begun in another way, or a process executes it.",
    "503": "The storage is away: send the request again.",
    "507": "The storage is full.",
}
_BODY_REFUSALS = {
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
}
_BOUNDS = {"limit": {"minimum": 1, "maximum": MOST}}
_EVENT: dict[str, Any] = {
    "description": "The data of a server-sent event; its id is for Last-Event-ID.",
    "type": "object",
    "required": ["type", "at", "run_id"],
    "properties": {
        "type": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "run_id": {"type": "string"},
    },
    "additionalProperties": True,
}


def openapi_of(names: Iterable[str]) -> dict[str, Any]:
    """The document of modules, or of objects named ``module:name``."""
    return describe(startables(names))


def describe(code: Mapping[str, Startable]) -> dict[str, Any]:
    """The OpenAPI 3.1 document; each of *code* has an address under ``/start``."""
    roots = [one for e in ENDPOINTS for one in (e.answer, e.body) if one is not None]
    _, schemas = msgspec.json.schema_components([*roots, Refusal], ref_template=_REF)
    schemas = {**schemas, "Event": _EVENT}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        if endpoint.name != "start":
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
                endpoint, schemas
            )
            continue
        for name, one in code.items():
            called = "start_" + re.sub(r"\W", "_", name)
            wanted = f"{called}_request"
            schemas[wanted] = _start_schema(schemas["StartRequest"], one, schemas)
            about = one.about or f"Start {name}."
            operation = _operation(endpoint, schemas) | {"operationId": called, "summary": about}
            operation["requestBody"] = _body(wanted, schemas)
            paths[f"/start/{name}"] = {"post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Surehold", "version": version("surehold")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _start_schema(
    general: Mapping[str, Any], one: Startable, schemas: dict[str, Any]
) -> dict[str, Any]:
    """The schema of a request that starts *one*.

    The types that it names are added to *schemas*.
    """
    parameters = one.parameters()
    if parameters is None:
        return {**general}
    properties = {name: _schema_of(hint, schemas) for name, (hint, _) in parameters.items()}
    needed = [name for name, (_, is_needed) in parameters.items() if is_needed]
    arguments = {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }
    made = {**general, "properties": {**general["properties"], "arguments": arguments}}
    return made | ({"required": ["arguments"]} if needed else {})


def _schema_of(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    try:
        (made,), named = msgspec.json.schema_components([hint], ref_template=_REF)
    except (TypeError, NotImplementedError):
        return {}  # an annotation that says nothing about JSON
    for name, schema in named.items():
        schemas.setdefault(name, schema)
    return made


def _content(schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _operation(endpoint: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": endpoint.about}
    if endpoint.answer is not None:
        success |= _content({"$ref": _REF.format(name=endpoint.answer.__name__)})
    elif endpoint.name in ("metrics", "health"):
        success |= _content({"type": "string"}, "text/plain")
    elif endpoint.name == "events":
        success |= _content({"$ref": _REF.format(name="Event")}, "text/event-stream")
    refusals = {**_REFUSALS, **(_BODY_REFUSALS if endpoint.body is not None else {})}
    refused = {
        status: {"description": said, **_content({"$ref": _REF.format(name="Refusal")})}
        for status, said in refusals.items()
    }
    answers = {str(endpoint.status): success, **(refused if endpoint.role else {})}
    if endpoint.name == "events":
        answers["204"] = {"description": "The run is over, and all its events were seen."}
    made: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.about,
        "parameters": _parameters(endpoint),
        "responses": answers,
        "security": [{"token": []}] if endpoint.role else [],
    }
    if endpoint.body is not None:
        made["requestBody"] = _body(endpoint.body.__name__, schemas)
    return made


def _body(name: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request; optional unless one of its fields is required."""
    schema = {"$ref": _REF.format(name=name)}
    return {**_content(schema), "required": bool(schemas[name].get("required"))}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{run}" in endpoint.path:
        found.append({"name": "run", "in": "path", "required": True, "schema": {"type": "string"}})
    found += (
        {"name": name, "in": "query", "schema": {"type": kind, **_BOUNDS.get(name, {})}}
        for name, kind in endpoint.query
    )
    headers = ["Idempotency-Key"] if endpoint.name in KEYED else []
    headers += ["Last-Event-ID"] if endpoint.name == "events" else []
    found += ({"name": name, "in": "header", "schema": {"type": "string"}} for name in headers)
    return found
