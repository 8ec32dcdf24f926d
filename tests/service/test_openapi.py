"""The checked-in OpenAPI document is the service's, and good to generate clients from."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from semel.apps.configuration import Configuration
from semel.service import sample_data
from semel.service.app import create_app
from semel.service.openapi import MEMBERS
from semel.service.runtime import Runtime
from tests import openapi
from tests.openapi import Json, changes
from tests.service.test_pages import API
from tests.unit.test_docs import code, rows


@pytest.fixture(scope="module")
def document() -> Json:
    return openapi.made()


@pytest.fixture(scope="module")
def with_apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Json]:
    """The document of a service with every application."""
    folder = tmp_path_factory.mktemp("apps")
    runtime = Runtime(Configuration(sample_data.settings(f"sqlite:///{folder / 'semel.db'}"), "the sample"))
    yield create_app(runtime)._app.openapi()  # type: ignore[attr-defined]  # it is FastAPI's
    runtime.close()


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def test_the_checked_in_document_is_the_services(document: Json) -> None:
    found = openapi.report(changes(openapi.published(), document))
    assert openapi.FILE.read_text("utf-8") == openapi.text(document), f"{openapi.COMMAND}\n{found}"


def test_the_document_is_valid_with_and_without_applications(document: Json, with_apps: Json) -> None:
    for one in (document, with_apps):
        validate(json.loads(json.dumps(one)))


def test_every_operation_has_a_short_name_of_its_own(document: Json, with_apps: Json) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name) for name in names)
    every = [operation["operationId"] for _, operation in operations(with_apps)]
    assert len(set(every)) == len(every) > len(names)
    assert "get_apps_household_chats_chat_messages_message" in every


def test_every_operation_parameter_and_field_of_a_request_is_explained(document: Json) -> None:
    tags = {one["name"]: one["description"] for one in document["tags"]}
    for place, operation in operations(document):
        assert operation["summary"].endswith("."), place
        assert set(operation["tags"]) <= tags.keys()
        for one in operation.get("parameters", []):
            assert one.get("description"), (place, one["name"])
        for response in operation["responses"].values():
            assert response["description"] not in ("", "Successful Response"), place
    for name, schema in document["components"]["schemas"].items():
        for field, one in schema.get("properties", {}).items() if name.endswith("Request") else ():
            assert one.get("description"), (name, field)


def test_a_number_says_how_wide_it_is_and_no_field_has_a_made_up_title(with_apps: Json) -> None:
    """Generators take a number without a width for one of 32 bits, and a title for the name of a type."""
    for name, schema in with_apps["components"]["schemas"].items():
        for one in within(schema):
            assert one.get("type") not in ("integer", "number") or "format" in one, (name, one)
            assert one is schema or "title" not in one, (name, one)


def within(schema: Json) -> Iterator[Json]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), schema.get("items")]
    for one in [*inner, schema.get("additionalProperties")]:
        if isinstance(one, dict):
            yield from within(one)


def test_requests_are_closed_and_answers_are_open_to_later_versions(document: Json) -> None:
    for name, schema in document["components"]["schemas"].items():
        if name.endswith(("Request", "SentError")):
            assert schema["additionalProperties"] is False, name
        else:
            assert "additionalProperties" not in schema, name


def test_every_success_of_an_operation_has_one_shape(document: Json) -> None:
    """A generated client reads all of them as the same type."""
    for place, operation in operations(document):
        shapes = [
            content["schema"]
            for status, one in operation["responses"].items()
            for kind, content in one.get("content", {}).items()
            if status < "300" and kind == "application/json"
        ]
        assert all(shape == shapes[0] for shape in shapes), place


def test_every_problem_of_an_operation_is_shown(document: Json) -> None:
    problem = document["components"]["schemas"]["Problem"]["properties"]
    for name, example in document["components"]["examples"].items():
        assert example["value"]["type"] == f"/problems#{name}"
        assert example["value"].keys() <= problem.keys()
    for place, operation in operations(document):
        for status, one in operation["responses"].items():
            if status >= "400":
                told = set(re.findall(r"`([a-z-]+)`:", one["description"]))
                assert told == one["content"]["application/problem+json"]["examples"].keys(), place


def test_every_member_of_a_problem_is_in_the_reference() -> None:
    told = [code(row[0]) for row in rows(API, "### What they tell besides")]
    assert set().union(*told) == MEMBERS.keys()


def test_the_scopes_of_the_document_are_those_of_the_reference(document: Json) -> None:
    told = {row[0].strip("`"): code(row[1].partition(";")[0]) for row in rows(API, "## Operations")}
    known = {
        place: {scope for one in operation["security"] for scope in one["token"]}
        for place, operation in operations(document)
        if " /v1/" in place
    }
    assert told == known


# What a change means


def claim(document: Json) -> Json:
    schema: Json = document["components"]["schemas"]["ClaimRequest"]
    return schema


def record(document: Json) -> Json:
    schema: Json = document["components"]["schemas"]["RecordResponse"]
    return schema


def a_path_goes(document: Json) -> None:
    del document["paths"]["/v1/wait"]


def a_name_changes(document: Json) -> None:
    document["paths"]["/v1/wait"]["post"]["operationId"] = "wait_for_it"


def a_field_is_needed(document: Json) -> None:
    claim(document)["required"].append("token")


def a_new_field_is_needed(document: Json) -> None:
    claim(document)["properties"]["shop"] = {"type": "string"}
    claim(document)["required"].append("shop")


def a_field_is_no_longer_taken(document: Json) -> None:
    del claim(document)["properties"]["lease"]


def a_word_is_no_longer_taken(document: Json) -> None:
    claim(document)["properties"]["on_lapsed"]["enum"].remove("hold")


def a_number_becomes_a_text(document: Json) -> None:
    record(document)["properties"]["attempt"] = {"type": "string"}


def an_answer_lacks_a_field(document: Json) -> None:
    del record(document)["properties"]["created_at"]
    record(document)["required"].remove("created_at")


def a_field_may_be_missing(document: Json) -> None:
    record(document)["required"].remove("attempt")


def a_field_may_be_null(document: Json) -> None:
    record(document)["properties"]["attempt"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def an_answer_has_a_new_word(document: Json) -> None:
    record(document)["properties"]["status"]["enum"].append("LOST")


def a_parameter_is_needed(document: Json) -> None:
    asked = {"name": "shop", "in": "query", "required": True, "schema": {"type": "string"}}
    document["paths"]["/v1/records"]["get"]["parameters"].append(asked)


def another_scope_is_needed(document: Json) -> None:
    document["paths"]["/v1/records"]["get"]["security"] = [{"token": ["ledger:read", "admin"]}]


def a_schema_is_renamed(document: Json) -> None:
    schemas = document["components"]["schemas"]
    schemas["Refusal"] = schemas["RefusedLetter"]
    del schemas["RefusedLetter"]
    schemas["RedriveResponse"]["properties"]["refused"]["items"]["$ref"] = "#/components/schemas/Refusal"


BREAKING = [
    *(a_path_goes, a_name_changes, a_field_is_needed, a_new_field_is_needed, a_field_is_no_longer_taken),
    *(a_word_is_no_longer_taken, a_number_becomes_a_text, an_answer_lacks_a_field, a_field_may_be_missing),
    *(a_field_may_be_null, an_answer_has_a_new_word, a_parameter_is_needed, another_scope_is_needed),
    a_schema_is_renamed,
]


def a_new_path(document: Json) -> None:
    document["paths"]["/v2/wait"] = {"post": document["paths"]["/v1/wait"]["post"]}


def a_field_may_be_sent(document: Json) -> None:
    error = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
    claim(document)["properties"]["shop"] = error


def a_word_is_taken(document: Json) -> None:
    claim(document)["properties"]["on_lapsed"]["enum"].append("ask")


def an_answer_tells_more(document: Json) -> None:
    record(document)["properties"]["shop"] = {"type": "string"}
    record(document)["required"].append("shop")


def a_problem_tells_more(document: Json) -> None:
    document["components"]["schemas"]["Problem"]["properties"]["shop"] = {"type": "string"}


def a_parameter_may_be_sent(document: Json) -> None:
    asked = {"name": "shop", "in": "query", "schema": {"type": "string"}}
    document["paths"]["/v1/records"]["get"]["parameters"].append(asked)


def a_status_is_new(document: Json) -> None:
    responses = document["paths"]["/v1/records"]["get"]["responses"]
    responses["410"] = responses["404"]


COMPATIBLE = [
    *(a_new_path, a_field_may_be_sent, a_word_is_taken, an_answer_tells_more, a_problem_tells_more),
    *(a_parameter_may_be_sent, a_status_is_new),
]


def changed(document: Json, change: Callable[[Json], None]) -> openapi.Changes:
    after = json.loads(json.dumps(document))
    change(after)
    return changes(document, after)


@pytest.mark.parametrize("change", BREAKING)
def test_a_change_that_breaks_clients_is_told_as_one(document: Json, change: Callable[[Json], None]) -> None:
    assert changed(document, change).breaking


@pytest.mark.parametrize("change", COMPATIBLE)
def test_a_change_that_breaks_nobody_is_told_as_one(document: Json, change: Callable[[Json], None]) -> None:
    found = changed(document, change)
    assert found.breaking == []
    assert found.additions


def test_words_for_people_change_nothing_for_clients(document: Json) -> None:
    after = copy.deepcopy(document)
    for _, operation in operations(after):
        operation["summary"] = "Another."
    assert changes(document, after) == openapi.Changes([], [])


def test_what_breaks_clients_is_written_only_where_that_is_meant(
    document: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before: dict[str, Any] = json.loads(json.dumps(document))
    before["paths"]["/v1/old"] = before["paths"]["/v1/wait"]
    file = tmp_path / "openapi.json"
    file.write_text(openapi.text(before))
    monkeypatch.setattr(openapi, "FILE", file)
    with pytest.raises(SystemExit, match="left as it is"):
        openapi.main([])
    assert "breaks clients: gone: POST /v1/old\n" in capsys.readouterr().out
    assert file.read_text() == openapi.text(before)
    openapi.main(["--breaking"])
    assert file.read_text() == openapi.text(document)
