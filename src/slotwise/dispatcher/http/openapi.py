"""The OpenAPI document and a page for people, both made from the route table."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from slotwise import __version__
from slotwise.dispatcher.http.auth import DASHBOARD_HEADER_VALUE, SESSION_COOKIE, Access
from slotwise.dispatcher.http.calls import Call, Parameter
from slotwise.dispatcher.http.problems import PROBLEM_JSON, ProblemDetails

_REF = "#/components/schemas/{name}"
_MEANING = {
    Access.OPEN: "Needs no token.",
    Access.VIEWER: "Needs the role viewer.",
    Access.SUBMITTER: "Needs the role submitter.",
    Access.ADMIN: "Needs the role admin.",
    Access.JOIN: "Needs a worker's join token.",
}
_ABOUT = (
    "Resource manager and job service for PySpark. Where Flink's REST API has the thing, methods, paths and shapes are "
    "Flink's. Send `Authorization: Bearer TOKEN` with every call; browsers log in with `POST /v1/session` and send the "
    f"header `X-Slotwise: {DASHBOARD_HEADER_VALUE}` with every call that changes something. Errors are "
    "`application/problem+json`."
)


def problems_of(call: Call) -> list[HTTPStatus]:
    """Every status other than success that a call may answer."""
    found = set(call.problems)
    if call.access is not Access.OPEN:
        found |= {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    if call.parameters:
        found.add(HTTPStatus.BAD_REQUEST)
    if call.body is not None:
        found |= {
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        }
    return sorted(found)


def document(calls: Sequence[Call]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [kind for call in calls for kind in (call.body, call.answer) if kind is not None]
    unique = list({str(kind): kind for kind in [*types, ProblemDetails]}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    known = {str(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.template, {})[call.method.lower()] = _operation(call, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slotwise", "version": __version__, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE},
            },
        },
    }


def _operation(call: Call, known: dict[str, Any]) -> dict[str, Any]:
    content = {"schema": known[str(call.answer)]} if call.answer is not None else {"schema": {"type": "string"}}
    answers: dict[str, Any] = {
        str(call.status.value): {"description": call.status.phrase, "content": {call.media: content}}
    }
    if call.any_media:
        # Whatever Spark's UI says.
        answers["default"] = {"description": "what the Spark UI answers", "content": {"*/*": {}}}
    for status in problems_of(call):
        answers[str(status.value)] = {
            "description": status.phrase,
            "content": {PROBLEM_JSON: {"schema": known[str(ProblemDetails)]}},
        }
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": _MEANING[call.access],
        "tags": [call.topic],
        "parameters": [_parameter(parameter) for parameter in call.parameters],
        "responses": answers,
        "security": [] if call.access is Access.OPEN else [{"token": []}, {"session": []}],
        "x-slotwise-role": call.access.value,
    }
    if call.takes_bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    if call.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": known[str(call.body)]}},
        }
    return operation


def _parameter(parameter: Parameter[Any]) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place.value,
        "description": parameter.meaning,
        "required": parameter.required,
        "schema": dict(parameter.schema),
    }


def surface(calls: Sequence[Call]) -> dict[str, Any]:
    """The REST surface as it is pinned: each call with its role, and a digest of its shapes."""
    described = document(calls)
    schemas = described["components"]["schemas"]
    pinned = {}
    for call in sorted(calls, key=lambda call: (call.template, call.method)):
        operation = described["paths"][call.template][call.method.lower()]
        shape = {"operation": {**operation, "summary": "", "description": ""}, "schemas": _used(operation, schemas)}
        text = msgspec.json.encode(shape, order="deterministic")
        pinned[f"{call.method} {call.template}"] = {
            "role": call.access.value,
            "sha256": hashlib.sha256(text).hexdigest()[:16],
        }
    return pinned


def _used(value: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas that a value refers to, whichever way."""
    found: dict[str, Any] = {}
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found[name] = {key: part for key, part in schemas[name].items() if key != "description"}
                todo.append(schemas[name])
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return found


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2733}"
    "code{font:13px ui-monospace,monospace;background:#eef1f4;padding:.1em .3em;border-radius:3px}"
    "table{border-collapse:collapse;margin:.3rem 0 1rem}td,th{text-align:left;padding:.15rem .8rem .15rem 0;"
    "vertical-align:top}h3{margin:1.6rem 0 .2rem}small{color:#5b6b7b}"
    "@media(prefers-color-scheme:dark){body{background:#12181f;color:#dde4ec}code{background:#223}}"
)


def page(calls: Sequence[Call]) -> str:
    """The calls as a page for people: plain HTML, nothing from other hosts."""
    out = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Slotwise REST API</title><style>{_STYLE}</style>",
        f"<h1>Slotwise REST API <small>{_text(__version__)}</small></h1>",
        f"<p>{_text(_ABOUT)}</p><p><a href=openapi.json>openapi.json</a> (OpenAPI 3.1)</p>",
    ]
    for topic in dict.fromkeys(call.topic for call in calls):
        out.append(f"<h2>{_text(topic)}</h2>")
        for call in (call for call in calls if call.topic == topic):
            out.append(f"<h3><code>{_text(call.method)} {_text(call.template)}</code></h3>")
            out.append(f"<p>{_text(call.summary)} <small>{_text(_MEANING[call.access])}</small></p>")
            rows = [(one.name, one.place.value, one.meaning) for one in call.parameters]
            if call.body is not None:
                rows.append(("body", "application/json", _name(call.body)))
            if call.takes_bytes:
                rows.append(("body", "application/octet-stream", "the file's bytes"))
            rows.append((str(call.status.value), call.media, _name(call.answer)))
            rows += [(str(status.value), PROBLEM_JSON, status.phrase) for status in problems_of(call)]
            cells = "".join(
                f"<tr><td><code>{_text(a)}</code><td><small>{_text(b)}</small><td>{_text(c)}" for a, b, c in rows
            )
            out.append(f"<table>{cells}</table>")
    return "\n".join(out) + "\n"


def _name(kind: Any) -> str:
    if kind is None:
        return ""
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2].replace("]", " list")


def _text(value: str) -> str:
    return html.escape(value)
