"""What an operator asks of any node is done by the one that has it, and a list has the parts of all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.queue_desk import DeskBench

from embermq.admin import operations as ops
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.forwarding import OtherNodes, SharedDesk, answered, do_on_any_node
from embermq.admin.http_api import create_control_app
from embermq.admin.operation import AdminOperation
from embermq.admin.operations import MESSAGES, OPERATIONS, PARKED, QUEUES, SESSIONS
from embermq.admin.queue_values import Configured, ListQueuesRequest, PutQueueRequest, QueueRequest
from embermq.admin.session_values import ClientRequest, GiveRequest, ListClientsRequest, NoRequest
from embermq.admin.trail import ChangeBegun
from embermq.admin.values import ParkedClientView, PublishOutcome, PublishRequest
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.queues.durations import Duration
from embermq.queues.errors import SettingsRefused

SLOTS = 3


class Trail:
    """Keeps what begins."""

    def __init__(self) -> None:
        self.begun: list[ChangeBegun] = []
        self.ended: list[str] = []

    async def begin(self, change: ChangeBegun) -> str:
        self.begun.append(change)
        return ""

    def end(self, _change_id: str, outcome: str) -> None:
        self.ended.append(outcome)


class Client(msgspec.Struct, frozen=True):
    client_id: str
    slot: int


class Desk:
    """Stands for all desks but that of queues; its clients end in the number of their slot."""

    def __init__(self, slot: int, ids: Sequence[str]) -> None:
        self.slot = slot
        self.ids = list(ids)
        self.done: list[tuple[str, str]] = []
        self.fault: Exception | None = None

    async def delete(self, client_id: str) -> None:
        if self.fault is not None:
            raise self.fault
        if client_id not in self.ids:
            raise NotFound(f"slot {self.slot} has no {client_id}")
        self.done.append(("delete", client_id))

    async def give(self, client_id: str, user: str) -> None:
        self.done.append((user, client_id))

    def clients(self) -> list[ParkedClientView]:
        if self.fault is not None:
            raise self.fault
        return [ParkedClientView(client_id=each, messages=1, parked=1) for each in self.ids]

    async def publish(self, asked: PublishRequest) -> PublishOutcome:
        self.done.append(("publish", asked.topic))
        return PublishOutcome(stored=True)

    def pins(self) -> list[str]:
        return []


class Fleet:
    """Three nodes in one process."""

    def __init__(self, ids: Mapping[int, Sequence[str]] | None = None) -> None:
        self.desks = [Desk(slot, (ids or {}).get(slot, ())) for slot in range(SLOTS)]
        self.queues = [DeskBench() for _ in range(SLOTS)]
        self.trails = [Trail() for _ in range(SLOTS)]
        self.away: set[int] = set()
        self.mute: set[int] = set()
        self.asked: list[int] = []

    def of(self, slot: int) -> Mapping[str, object]:
        nodes, desk = Node(self, slot), self.desks[slot]
        found = dict.fromkeys((SESSIONS, PARKED, MESSAGES), SharedDesk(desk, nodes))
        return {**found, QUEUES: SharedDesk(self.queues[slot].desk, nodes)}

    async def ask(self, operation: AdminOperation, request: Any, at: int = 0) -> Any:
        """The answer; of a list, what is missing too."""
        done = await do_on_any_node(
            operation, self.of(at)[operation.desk], request, by="token deploy", peer="192.0.2.1"
        )
        return (done.answer, list(done.missing)) if operation.is_list_of_all else done.answer


class Node(OtherNodes):
    """One of them, as it sees the others."""

    def __init__(self, fleet: Fleet, slot: int) -> None:
        self._fleet = fleet
        self._slot = slot

    @property
    def slot(self) -> int:
        return self._slot

    @property
    def others(self) -> Sequence[int]:
        return [slot for slot in range(SLOTS) if slot != self._slot]

    def slot_of_client(self, client_id: str) -> int:
        return int(client_id[-1])

    def slot_of_queue(self, name: str) -> int:
        return int(name[-1])

    def is_mute(self, slot: int) -> bool:
        return slot in self._fleet.mute

    async def ask(self, slot: int, told: bytes, answer_s: float) -> bytes:
        self._fleet.asked.append(slot)
        if slot in self._fleet.away:
            raise StoreUnavailable(f"slot {slot} is away")
        return await answered(self._fleet.of(slot), self._fleet.trails[slot], told)


def run(scenario: Callable[[], Any]) -> Any:
    return asyncio.run(scenario())


def test_what_is_of_another_slot_is_done_there_for_who_has_asked() -> None:
    fleet = Fleet({1: ["c1"], 0: ["c0"]})

    async def scenario() -> None:
        await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="c1"))
        await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="c0"))
        await fleet.ask(ops.GIVE_SESSION, GiveRequest(client_id="d2", user="ann"))
        for topic in ("$queue/q2", "a/2"):
            assert (await fleet.ask(ops.PUBLISH, PublishRequest(topic=topic))).stored
        with pytest.raises(NotFound, match="slot 1 has no x1"):
            await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="x1"))

    run(scenario)
    assert [desk.done for desk in fleet.desks] == [
        [("delete", "c0"), ("publish", "a/2")],
        [("delete", "c1")],
        [("ann", "d2"), ("publish", "$queue/q2")],
    ]
    (change, _), outcomes = fleet.trails[1].begun, fleet.trails[1].ended
    assert (change.by, change.peer, change.over) == ("token deploy", "192.0.2.1", "node")
    assert (change.operation, change.object) == ("DeleteSession", {"client_id": "c1"})
    assert outcomes == ["done", "refused: slot 1 has no x1"]


def test_a_queue_is_made_shown_and_listed_from_anywhere() -> None:
    fleet = Fleet()
    settings = {"limits": {"message_ttl": "7s"}, "dlq_config": {"alert_webhook": "https://example.org/x"}}

    async def scenario() -> None:
        made = await fleet.ask(ops.PUT_QUEUE, PutQueueRequest(name="q2", settings=settings))
        assert isinstance(made, Configured) and made.created
        assert made.settings.limits.message_ttl == Duration(7_000)
        shown = await fleet.ask(ops.GET_QUEUE, QueueRequest(name="$queue/q2"), at=1)
        assert shown.settings == made.settings
        with pytest.raises(SettingsRefused, match="nothing: there is no such setting"):
            await fleet.ask(ops.PUT_QUEUE, PutQueueRequest(name="q2", settings={"nothing": 1}))
        await fleet.ask(ops.PUT_QUEUE, PutQueueRequest(name="p0"), at=1)
        found, missing = await fleet.ask(ops.LIST_QUEUES, ListQueuesRequest(match="?[02]"), at=1)
        assert ([each.name for each in found], missing) == (["p0", "q2"], [])

    run(scenario)


def test_a_list_has_the_parts_of_all_in_order_by_pages() -> None:
    fleet = Fleet({0: ["a0", "d0"], 1: ["b1", "e1"], 2: ["c2"]})

    class Listed(Desk):
        async def sessions(self, asked: ListClientsRequest) -> list[Client]:
            behind = sorted(each for each in self.ids if each > asked.after)
            return [Client(each, self.slot) for each in behind[: asked.limit]]

    fleet.desks = [Listed(desk.slot, desk.ids) for desk in fleet.desks]
    for desk in fleet.desks[1:]:
        desk.ids.append("$member/7/a0")
    operation = replace(ops.LIST_CLIENTS, answers={200: list[Client]})

    async def scenario() -> None:
        pages: list[list[str]] = []
        after = ""
        while True:
            page, missing = await fleet.ask(operation, ListClientsRequest(after=after, limit=1))
            assert not missing
            if not page:
                break
            pages.append([each.client_id for each in page])
            after = pages[-1][-1]
        assert pages == [["$member/7/a0"] * 2, ["a0"], ["b1"], ["c2"], ["d0"], ["e1"]]

    run(scenario)


def test_what_is_missing_of_a_list_is_named() -> None:
    fleet = Fleet({0: ["a0"], 1: ["b1"], 2: ["c2"]})
    fleet.away = {2}

    async def scenario() -> None:
        found, missing = await fleet.ask(ops.LIST_PARKED_CLIENTS, NoRequest())
        assert ([each.client_id for each in found], missing) == (["a0", "b1"], [2])
        with pytest.raises(StoreUnavailable, match="slot 2 is away; it may have been done"):
            await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="c2"))
        with pytest.raises(StoreUnavailable, match=r"slot 2 is away$"):
            await fleet.ask(ops.GET_QUEUE, QueueRequest(name="q2"))

    run(scenario)


def test_a_member_session_is_looked_for_at_all_slots() -> None:
    fleet = Fleet({2: ["$member/7/c0"]})

    async def scenario() -> None:
        await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="$member/7/c0"))
        with pytest.raises(NotFound, match="slot 0 has no"):
            await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="$member/8/c0"))

    run(scenario)
    assert fleet.desks[2].done == [("delete", "$member/7/c0")]


def test_a_member_session_is_found_behind_a_slot_that_is_away() -> None:
    fleet = Fleet({2: ["$member/7/c0", "$member/8/c0"]})
    fleet.away = {1}

    async def scenario() -> None:
        await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="$member/7/c0"))
        with pytest.raises(StoreUnavailable, match="slot 1 is away"):
            await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="$member/9/c0"))
        fleet.away, fleet.mute, fleet.asked = set(), {1}, []
        await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="$member/8/c0"))

    run(scenario)
    assert fleet.desks[2].done == [("delete", "$member/7/c0"), ("delete", "$member/8/c0")]
    assert fleet.asked == [2], "who is mute is asked last"


@pytest.mark.parametrize(
    "fault",
    [StoreError("full"), StoreUnavailable("gone"), OperationRefused("not now"), ZeroDivisionError("0")],
)
def test_what_another_node_refuses_is_missing_of_a_list(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet({0: ["a0"], 1: ["b1"], 2: ["c2"]})
    fleet.desks[1].fault = fault

    async def scenario() -> None:
        found, missing = await fleet.ask(ops.LIST_PARKED_CLIENTS, NoRequest())
        assert ([each.client_id for each in found], missing) == (["a0", "c2"], [1])
        assert "the part of slot 1 is missing" in caplog.text
        if not isinstance(fault, StoreUnavailable):
            with pytest.raises(type(fault), match=str(fault)):
                await fleet.ask(ops.LIST_PARKED_CLIENTS, NoRequest(), at=1)

    run(scenario)


def test_a_list_does_not_wait_for_a_node_that_is_mute() -> None:
    fleet = Fleet({0: ["a0"], 1: ["b1"], 2: ["c2"]})
    fleet.mute = {1}

    async def scenario() -> None:
        found, missing = await fleet.ask(ops.LIST_PARKED_CLIENTS, NoRequest())
        assert ([each.client_id for each in found], missing, fleet.asked) == (["a0", "c2"], [1], [2])

    run(scenario)


@pytest.mark.parametrize("fault", [ZeroDivisionError("secret"), StoreError("full")])
def test_a_fault_there_is_told_without_its_words(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet({1: ["c1"]})
    fleet.desks[1].fault = fault

    async def scenario() -> None:
        with pytest.raises(StoreError) as told:
            await fleet.ask(ops.DELETE_SESSION, ClientRequest(client_id="c1"))
        assert "secret" not in str(told.value)
        assert ("full" in str(told.value)) == isinstance(fault, StoreError)

    run(scenario)
    assert ("DeleteSession failed" in caplog.text) == (not isinstance(fault, StoreError))


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (b"{}", RequestRefused),
        (b'{"operation":"PutBan","request":{},"by":"","peer":""}', OperationRefused),
        (b'{"operation":"Nothing","request":{},"by":"","peer":""}', OperationRefused),
        (b'{"operation":"GetClient","request":{"client_id":7},"by":"","peer":""}', RequestRefused),
    ],
)
def test_what_a_node_does_not_do_for_another_is_refused(told: bytes, kind: type[Exception]) -> None:
    fleet = Fleet()
    found = run(lambda: answered(fleet.of(0), fleet.trails[0], told))
    assert msgspec.json.decode(found)["refused"] == kind.__name__
    assert not fleet.trails[0].begun


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.desk in (QUEUES, SESSIONS, PARKED, MESSAGES)],
    ids=lambda each: each.name,
)
def test_each_answer_can_be_read_by_the_node_that_asks(operation: AdminOperation) -> None:
    for kind in operation.answers.values():
        msgspec.json.Decoder(kind, dec_hook=lambda _kind, _value: None)
    msgspec.json.Decoder(operation.request, dec_hook=lambda _kind, _value: None)


def test_over_http_a_header_says_what_is_missing() -> None:
    fleet = Fleet({0: ["a0"]})
    fleet.away = {1, 2}

    async def scenario() -> None:
        app = create_control_app(fleet.of(0))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://broker"
        ) as client:
            answer = await client.get("/api/v1/parked/clients")
            assert (answer.status_code, answer.headers["embermq-missing-slots"]) == (200, "1,2")
            fleet.away.clear()
            answer = await client.get("/api/v1/parked/clients")
            assert "embermq-missing-slots" not in answer.headers
            assert len(answer.json()) == 1

    run(scenario)
