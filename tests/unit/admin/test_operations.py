"""The one table of operations: what HTTP, gRPC, the control socket and the commands are made from."""

from __future__ import annotations

import re

import pytest

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.api_schema import described, docs_page
from embermq.admin.errors import STATUSES, RequestRefused
from embermq.admin.operation import request_of
from embermq.admin.operations import DELETE_PARKED, GET_PARKED, LIST_PARKED, OPERATIONS, QUEUE_OPERATIONS
from embermq.admin.rpc_server import CODES
from embermq.admin.trail import is_change, object_of
from embermq.admin.values import PublishRequest


def test_names_and_addresses_are_those_of_one_operation() -> None:
    names = [each.name for each in OPERATIONS]
    addresses = [(each.method, path) for each in OPERATIONS for path in each.paths]
    assert len(set(names)) == len(names) and len(set(addresses)) == len(addresses)


def test_an_address_has_fields_of_the_request() -> None:
    for each in OPERATIONS:
        for path in each.paths:
            assert set(re.findall(r"\{(\w+)\}", path)) <= set(each.request.__struct_fields__), each.name
        assert not each.body_as or each.body_as in each.request.__struct_fields__, each.name
        assert set(each.pages) <= set(each.request.__struct_fields__), each.name


def test_the_audit_trail_has_what_a_change_is_about_and_no_secret() -> None:
    secrets = {"password", "payload", "payload_base64", "properties"}
    for each in filter(is_change, OPERATIONS):
        named = {*re.findall(r"\{(\w+)\}", each.paths[0]), *each.names}
        assert named and not named & secrets, each.name
        assert set(each.names) <= set(each.request.__struct_fields__), each.name
    about = PublishRequest(topic="t" * 1_000, payload="hidden", retain=True)
    (publish,) = (each for each in OPERATIONS if each.name == "Publish")
    assert object_of(publish, about) == {"topic": "t" * 256 + "…", "qos": 1, "retain": True}
    (redrive,) = (each for each in OPERATIONS if each.name == "RedriveDeadLetters")
    letters = redrive.request(name="q", ids=tuple(map(str, range(50))))
    ids = object_of(redrive, letters)["ids"]
    assert isinstance(ids, list) and ids[-1] == "… 50 in all" and len(ids) == 21


def test_http_and_grpc_have_the_same_operations_of_queues() -> None:
    calls = pb.DESCRIPTOR.services_by_name["QueueAdmin"].methods_by_name
    assert {each.name for each in QUEUE_OPERATIONS} == set(calls)


def test_what_is_refused_over_http_has_a_code_of_grpc() -> None:
    assert {status for _, status in STATUSES} <= set(CODES)


def test_all_operations_can_be_described() -> None:
    document = described(OPERATIONS)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == sum(len(each.paths) for each in OPERATIONS)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            told = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert told == set(re.findall(r"\{(\w+)\}", path)), operation["operationId"]
    queue = document["paths"]["/queues/{name}/dlq"]["get"]
    assert {(one["name"], one["in"]) for one in queue["parameters"]} >= {
        ("name", "path"),
        ("reason", "query"),
    }
    assert document["components"]["schemas"]["Limits"]["properties"]["message_ttl"]["default"] == "168h"


def test_the_page_has_all_of_them_and_every_value_that_it_names() -> None:
    page = bytes(docs_page(described(OPERATIONS)).body).decode()
    for operation in OPERATIONS:
        assert operation.summary.partition("'")[0] in page, operation.name
    assert set(re.findall("href='#([^']+)'", page)) <= set(re.findall("id='([^']+)'", page))
    assert "&lt;span" not in page, "markup that is shown"


@pytest.mark.parametrize("number", [2**63, -1, 10**30])
def test_a_number_that_no_store_has_is_refused(number: int) -> None:
    """SQLite fails at it."""
    for operation, said in (
        (LIST_PARKED, {"after": str(number)}),
        (GET_PARKED, {"number": str(number)}),
        (DELETE_PARKED, {"number": ["1", str(number)]}),
    ):
        with pytest.raises(RequestRefused, match=str(number)):
            request_of(operation, {"client_id": "c", **said}, as_text=True)
