"""The REST API as an OpenAPI document, made from the schema that server and client share."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from weir.rest.schema.base import Endpoint, Errors, Text
from weir.rest.schema.endpoints import ENDPOINTS

_OPENAPI_VERSION = "3.1.0"


@cache
def document(version: str) -> dict[str, Any]:
    """The document; ``version`` is Weir's."""
    bodies = [endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None]
    answers = [endpoint.answer for endpoint in ENDPOINTS if endpoint.answer is not Text]
    kinds = list(dict.fromkeys([Errors, *bodies, *answers]))
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, schema_of
        )
    return {
        "openapi": _OPENAPI_VERSION,
        "info": {"title": "Weir", "version": version},
        "servers": [{"url": "/v1"}, {"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # A server without a token asks for no token.
        "security": [{"token": []}, {}],
    }


def _operation(endpoint: Endpoint[Any], schema_of: dict[Any, Any]) -> dict[str, Any]:
    content = (
        {"text/plain": {"schema": {"type": "string"}}}
        if endpoint.answer is Text
        else {"application/json": {"schema": schema_of[endpoint.answer]}}
    )
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"\{(\w+)\}", endpoint.path)),
            *(_parameter(name, "query") for name in endpoint.query),
        ],
        "responses": {
            str(endpoint.status): {"description": "Success.", "content": content},
            "default": {
                "description": "A refusal or a failure.",
                "content": {"application/json": {"schema": schema_of[Errors]}},
            },
        },
    }
    if endpoint.body is not None:
        schema = schema_of[endpoint.body]
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(name: str, where: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
