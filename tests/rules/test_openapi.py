"""OpenAPI documents: what is found in them, and that no document leads to more than its bounds."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse as load
from forbear.rules.draft_openapi import Chosen, draft, pairs, provider_of
from forbear.rules.exchanges import Unusable
from forbear.rules.openapi import Document, Input
from forbear.server.documents import json_or_yaml
from forbear.tools.samples import fault

STATE = {"type": "string", "enum": ["queued", "running", "done"]}
RUN = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "state": STATE, "progress": {"type": "integer"}},
}


def answered(schema: Any, code: str = "200") -> dict[str, Any]:
    return {code: {"content": {"application/json": {"schema": schema}}}}


def document(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Exports"},
        "servers": [{"url": "https://api.exp.example/v1"}],
        "paths": {
            "/exports": {
                "post": {
                    "operationId": "start",
                    "requestBody": {
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "required": ["dataset"],
                                    "properties": {
                                        "dataset": {"type": "string"},
                                        "made": {"type": "string", "readOnly": True},
                                    },
                                }
                            }
                        }
                    },
                    "responses": answered({"$ref": "#/components/schemas/Run"}, "202"),
                }
            },
            "/exports/{exportId}": {
                "get": {"responses": answered({"$ref": "#/components/schemas/Run"})}
            },
        },
        "components": {"schemas": {"Run": RUN}},
    }
    return made | changes


def read(made: Any) -> Document:
    return Document(json_or_yaml(json.dumps(made).encode()))


def drafted(made: Any) -> str:
    found = read(made)
    jobs = pairs(found)
    chosen = Chosen(jobs[:1], () if jobs else found.operations[:1])
    return draft(found, chosen, provider_of(found), "a test").text()


def job(made: Any) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(tomllib.loads(drafted(made))["jobs"].values()))
    return found


def call(made: Any) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(tomllib.loads(drafted(made))["calls"].values()))
    return found


# --- jobs -----------------------------------------------------------------------------------


def test_a_submission_and_the_read_of_its_path_with_an_id_are_a_job() -> None:
    (found,) = pairs(read(document()))
    assert (found.submit.id, found.status.line) == ("start", "GET /exports/{exportId}")
    held = job(document())
    assert held["submit"] == "POST /exports"
    assert held["body"] == {"dataset": "{arg.dataset}"}
    assert held["status"] == "GET /exports/{id}"
    assert (held["id"], held["state"]) == ("/id", "/state")
    assert held["states"]["progress"] == "/progress"


def test_a_read_without_words_for_a_state_makes_no_job() -> None:
    for state in ({}, {"state": {"type": "string"}}, {"state": {"enum": ["on"]}}):
        run = {"properties": {"id": {"type": "string"}, **state}}
        made = document(components={"schemas": {"Run": run}})
        assert pairs(read(made)) == ()
    assert "calls" in tomllib.loads(drafted(made))


def test_a_submission_that_only_locates_its_job_takes_the_address() -> None:
    made = document()
    made["paths"]["/exports"]["post"]["responses"] = {
        "202": {"headers": {"Location": {"schema": {"type": "string"}}}}
    }
    held = job(made)
    assert held["submit"]["take"] == {"status_url": "header:Location"}
    assert held["status"] == "GET {take.status_url}"


def test_neighbours_that_cancel_or_bring_the_result_are_told() -> None:
    made = document()
    made["paths"]["/exports/{exportId}/cancel"] = {"post": {"responses": {}}}
    made["paths"]["/exports/{exportId}/results"] = {"get": {"responses": {}}}
    text = drafted(made)
    assert "# The document has a request for cancelling: POST /exports/{id}/cancel" in text
    assert 'result = "GET /exports/{id}/results"' in text


# --- what a call takes ----------------------------------------------------------------------


def one_call(**operation: Any) -> dict[str, Any]:
    return document(paths={"/things/{a b}/{thing}": {"post": operation | {"operationId": "make"}}})


def test_parameters_become_arguments_with_their_schemas() -> None:
    made = one_call(
        parameters=[
            {"in": "path", "name": "thing", "schema": {"type": "integer"}},
            {"in": "query", "name": "dry", "required": True, "schema": {"type": "boolean"}},
            {"in": "query", "name": "api_key", "required": True, "schema": {"type": "string"}},
            {"in": "header", "name": "Idempotency-Key", "schema": {"type": "string"}},
            {"in": "header", "name": "X-Version", "schema": {"enum": ["2026-01-01"]}},
            {"in": "cookie", "name": "sid", "required": True},
        ]
    )
    held = call(made)
    assert held["path"] == "/things/{arg.a_b}/{arg.thing}"
    assert held["query"] == {"dry": "{arg.dry}"}
    assert held["headers"] == {"X-Version": "2026-01-01"}
    assert held["idempotency"] == {"at": "header:Idempotency-Key"}
    assert held["input"]["properties"]["thing"] == {"type": "integer"}
    assert set(held["input"]["properties"]) == {"a_b", "thing", "dry"}


def test_a_member_that_is_named_like_a_key_is_told_and_an_optional_one_left_out() -> None:
    members = {name: {"type": "string"} for name in ("name", "secret", "token")}
    schema = {"type": "object", "required": ["name", "secret"], "properties": members}
    made = one_call(requestBody={"content": {"application/json": {"schema": schema}}})
    assert set(call(made)["body"]) == {"name", "secret"}
    assert "takes secret from the agent" in drafted(made)


@pytest.mark.parametrize(
    ("security", "auth"),
    [
        ({"type": "http", "scheme": "bearer"}, "bearer env:EXP_TOKEN"),
        ({"type": "http", "scheme": "basic"}, "basic env:EXP_USER env:EXP_TOKEN"),
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, "header X-Key env:EXP_TOKEN"),
        ({"type": "apiKey", "in": "query", "name": "key"}, "query key env:EXP_TOKEN"),
        ({"type": "openIdConnect"}, "bearer env:EXP_TOKEN"),
        ({"type": "oauth2", "flows": {"implicit": {}}}, "bearer env:EXP_TOKEN"),
        ({"type": "http", "scheme": "digest"}, ""),
        ({"type": "apiKey", "in": "header", "name": "a\nb"}, ""),
    ],
)
def test_security_schemes_become_references(security: dict[str, Any], auth: str) -> None:
    made = document(
        security=[{"own": []}],
        components={"schemas": {"Run": RUN}, "securitySchemes": {"own": security}},
    )
    assert tomllib.loads(drafted(made))["auth"] == auth


def test_the_client_credentials_grant_becomes_its_section() -> None:
    flow = {"tokenUrl": "https://id.exp.example/token", "scopes": {"read": "", "write": ""}}
    scheme = {"type": "oauth2", "flows": {"clientCredentials": flow}}
    made = document(components={"schemas": {"Run": RUN}, "securitySchemes": {"own": scheme}})
    assert tomllib.loads(drafted(made))["auth"] == {
        "scheme": "oauth2_client",
        "token_url": "https://id.exp.example/token",
        "client_id": "env:EXP_CLIENT_ID",
        "client_secret": "env:EXP_CLIENT_SECRET",
        "scope": "read write",
    }


@pytest.mark.parametrize(
    ("servers", "base_url"),
    [
        ([{"url": "https://a.example/v1/"}], "https://a.example/v1"),
        (
            [{"url": "https://{eu}.example", "variables": {"eu": {"default": "de"}}}],
            "https://de.example",
        ),
        ([{"url": "/v1"}], ""),
        ([{"url": "http://plain.example"}], ""),
        ([{"url": "https://u:p@a.example"}], ""),
        ([{"url": "http://127.0.0.1:8080"}], "http://127.0.0.1:8080"),
        ([], ""),
        ("x", ""),
    ],
)
def test_the_address_is_a_server_of_the_document_or_left(servers: Any, base_url: str) -> None:
    text = drafted(document(servers=servers))
    assert tomllib.loads(text)["base_url"] == base_url
    if not base_url:
        assert "#   3. base_url: the address of the API" in text


def test_schemas_of_openapi_3_0_become_those_of_json_schema() -> None:
    made = Input(read(document())).schema(
        {
            "type": "number",
            "nullable": True,
            "minimum": "0",
            "exclusiveMinimum": True,
            "description": "<p>One. [Two](https://x.example).</p>\n\nThree",
            "x-own": 1,
            "pattern": "(a+)+$",
            "enum": [None],
        }
    )
    assert made == {"type": ["number", "null"], "description": "One. Two. Three"}


# --- documents that are none, and hostile ones ----------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "its top is no object"),
        (b"[]", "its top is no object"),
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": "2.9", "paths": {}}', "does not say openapi: 3.x"),
        (b"openapi: 3.0.0\npaths: {}\n", "no operations"),
        (b'{"openapi": "3.0.0", "paths": ', "no JSON"),
        (b"openapi: [3.0.0\n", "neither JSON nor YAML"),
        (b"\x00\x01\x02\xff", "not UTF-8"),
        (b"a: &a [*a]\nb: !!python/name:os.system x\n", "neither JSON nor YAML"),
        (b"[" * 1_000_000, "nested deeper"),
        (b"- " * 1_000_000, "neither JSON nor YAML"),
        (b"? [a]\n: b\n", "a key that is no text"),
        (b"a: \x1b[31mred\n", "neither JSON nor YAML"),
    ],
)
def test_what_is_no_document_is_refused_with_the_reason(content: bytes, told: str) -> None:
    with pytest.raises(Unusable, match=told) as refused:
        Document(json_or_yaml(content))
    assert "\x1b" not in str(refused.value)


def test_schemas_that_contain_themselves_end() -> None:
    tree: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}}}
    tree["properties"]["next"] = {"$ref": "#/components/schemas/Run"}
    tree["properties"]["state"] = STATE
    tree["allOf"] = [{"$ref": "#/components/schemas/Run"}]
    made = document(components={"schemas": {"Run": tree, "A": {"$ref": "#/components/schemas/A"}}})
    made["paths"]["/exports"]["post"]["requestBody"] = {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Run"}}}
    }
    made["paths"]["/exports"]["post"]["parameters"] = [
        {"in": "query", "name": "q", "required": True, "schema": {"$ref": "#/components/schemas/A"}}
    ]
    assert job(made)["id"] == "/id"
    assert fault(job(made)["input"]) is None


def test_a_document_that_refers_to_itself_over_and_over_is_bounded() -> None:
    wide = {f"p{n}": {"$ref": "#/components/schemas/Run"} for n in range(50)}
    run = {"type": "object", "properties": {**wide, "id": {"type": "string"}, "state": STATE}}
    made = document(components={"schemas": {"Run": run}})
    made["paths"]["/exports"]["post"]["requestBody"] = {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Run"}}}
    }
    assert len(drafted(made)) < 100_000


def test_yaml_that_multiplies_its_parts_is_bounded() -> None:
    bomb = "a0: &a0 {type: object, properties: {x: {type: string}}}\n"
    for n in range(1, 30):
        members = ", ".join(f"p{m}: *a{n - 1}" for m in range(10))
        bomb += f"a{n}: &a{n} {{type: object, properties: {{{members}}}}}\n"
    text = (
        f"{bomb}openapi: 3.0.0\npaths:\n  /x:\n    post:\n      requestBody:\n        content:\n"
        "          application/json:\n            schema: *a29\n      responses: {}\n"
    )
    found = Document(json_or_yaml(text.encode()))
    assert len(draft(found, Chosen((), found.operations), "exp", "a test").text()) < 200_000


TEXT = st.text(max_size=12)
NAMES = st.one_of(
    st.sampled_from(
        [
            *("properties", "type", "enum", "items", "allOf", "oneOf", "$ref", "required", "in"),
            *("name", "schema", "state", "id", "url", "format", "pattern", "minimum", "default"),
        ]
    ),
    TEXT,
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
        st.sampled_from(
            [
                *("object", "string", "integer", "array", "path", "query", "header", "binary"),
                *("#/components/schemas/Run", "#", "other.json#/x", "\x1b[31m", "\u202e", "a'''b"),
            ]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@example({"required": [0]}, None, None, "", "")
@example({"required": [9.3e18]}, None, None, "", "")
@given(VALUES, VALUES, VALUES, TEXT, TEXT)
def test_whatever_a_document_says_the_file_is_toml_and_its_schemas_are_schemas(
    schema: Any, parameters: Any, run: Any, title: str, path: str
) -> None:
    made = document(info={"title": title}, servers=run)
    made["paths"]["/exports"]["post"]["requestBody"] = {
        "content": {"application/json": {"schema": schema}}
    }
    made["paths"]["/exports"]["post"]["parameters"] = parameters
    made["paths"][f"/{path}"] = {"put": {"parameters": parameters, "responses": run}}
    made["components"]["schemas"]["Run"]["properties"] |= run if isinstance(run, dict) else {}
    made["components"]["securitySchemes"] = run
    with suppress(Unusable):
        _is_sound(read(made))


def _is_sound(found: Document) -> None:
    text = draft(found, Chosen(pairs(found), found.operations), "exp", "a test").text()
    loaded = tomllib.loads(text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    for action in (*loaded.get("jobs", {}).values(), *loaded.get("calls", {}).values()):
        assert fault(action.get("input", {"type": "object"})) is None


def test_a_draft_of_a_call_loads_as_it_stands() -> None:
    made = document(paths={"/things": {"get": {"responses": {}}}})
    assert isinstance(load(drafted(made), "exp.toml"), Contract)
