"""Queues of a running broker over gRPC, with clients that protoc made."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.forked_program import run_program
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.rpc_client import RpcClient
from tests.support.waiting import wait_until

from embermq.admin import queue_admin_pb2 as pb
from embermq.edge.settings import DEFAULT_GRPC

QUEUES = """
[[queues]]
name = "rpc/dead"
retry_policy.max_retries = 0
"""
CALLS: tuple[tuple[str, Any, int], ...] = (
    ("ListQueues", pb.ListQueuesRequest(), 0),
    ("GetQueue", pb.QueueRequest(name="none"), 0),
    ("GetQueueStats", pb.GetQueueStatsRequest(name="none"), 0),
    ("ListGroups", pb.ListGroupsRequest(name="none"), 0),
    ("ListConsumers", pb.ListConsumersRequest(name="none"), 0),
    ("PeekMessages", pb.PeekMessagesRequest(name="none"), 0),
    ("GetMessage", pb.GetMessageRequest(name="none", message_id="1-1"), 0),
    ("ExplainQueue", pb.QueueRequest(name="none"), 0),
    ("ListDeadLetters", pb.ListDeadLettersRequest(name="none"), 0),
    ("GetRetry", pb.QueueRequest(name="none"), 0),
    ("RetryDeadLetter", pb.RetryDeadLetterRequest(name="none", id="1-1"), 1),
    ("RetryDeadLetters", pb.RetryDeadLettersRequest(name="none"), 1),
    ("RedriveDeadLetters", pb.RedriveDeadLettersRequest(name="none", ids=["1-1"]), 1),
    ("StopRetry", pb.QueueRequest(name="none"), 1),
    ("PurgeQueue", pb.PurgeQueueRequest(name="none"), 1),
    ("RemoveGroup", pb.RemoveGroupRequest(name="none", group="g"), 1),
    ("PutQueue", pb.PutQueueRequest(name="none//"), 2),
    ("DeleteQueue", pb.QueueRequest(name="none"), 2),
)
"""Each with what harms nobody, and how many scopes do not allow it."""


def served(folder: Path, port: int, **settings: object) -> BrokerProcess:
    return queue_broker(folder, QUEUES, listeners__grpc=f"127.0.0.1:{port}", **settings)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[BrokerProcess]:
    with served(tmp_path_factory.mktemp("grpc"), port) as running:
        yield running


@pytest.fixture
def rpc(broker: BrokerProcess, port: int) -> Iterator[RpcClient]:
    with RpcClient(port) as client:
        yield client


def figures(name: str) -> pb.GetQueueStatsRequest:
    return pb.GetQueueStatsRequest(name=name)


def purged(name: str) -> pb.PurgeQueueRequest:
    return pb.PurgeQueueRequest(name=name)


def queue(name: str) -> pb.QueueRequest:
    return pb.QueueRequest(name=name)


def rest(broker: BrokerProcess, path: str) -> Any:
    return httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/queues/{path}", timeout=30).json()


def token(broker: BrokerProcess, name: str, scope: str) -> str:
    done = run_program("tokens", "create", name, "--scope", scope, "--data-dir", broker.data_dir)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.promise("queues-41")
def test_a_queue_is_made_listed_changed_and_deleted(rpc: RpcClient) -> None:
    for name in ("rpc/a", "rpc/b", "rpc/c"):
        settings = pb.QueueSettings(name=f"$queue/{name}", ordering="strict")
        made = rpc("PutQueue", pb.PutQueueRequest(name=f"$queue/{name}", settings=settings))
        assert made.created and (made.settings.name, made.settings.partitions) == (name, 1)
    page = rpc("ListQueues", pb.ListQueuesRequest(match="rpc/?", limit=2)).queues
    assert [one.name for one in page] == ["rpc/a", "rpc/b"]
    page = rpc("ListQueues", pb.ListQueuesRequest(match="rpc/?", after="rpc/b")).queues
    assert [(one.name, one.ordering, one.kind) for one in page] == [("rpc/c", "strict", "ordinary")]
    changed = rpc("PutQueue", pb.PutQueueRequest(name="rpc/a", settings={"performance": {"prefetch": 5}}))
    assert not changed.created and changed.settings.ordering == "partition"
    shown = rpc("GetQueue", queue("$queue/rpc/a"))
    assert shown.settings.performance.prefetch == 5 and shown.stats.partitions == 10
    for name in ("rpc/a", "rpc/b", "rpc/c"):
        assert rpc("DeleteQueue", queue(name)).messages == 0
    assert rpc.refused("GetQueue", queue("rpc/a")) == ("NOT_FOUND", "there is no queue 'rpc/a'")


@pytest.mark.promise("queues-12", "queues-41")
def test_delayed_messages_are_listed_and_deleted(broker: BrokerProcess, rpc: RpcClient) -> None:
    async def scenario() -> None:
        client = await worker(broker, "delaying-1")
        await client.enqueues("$queue/rpc/late", b"one", b"two", delay="1h")

    run(scenario())
    one, two = rpc("ListDelayed", pb.ListDelayedRequest(name="rpc/late")).messages
    assert (one.payload, two.payload) == (b"one", b"two") and one.about.HasField("visible")
    assert not one.about.HasField("partition")
    page = pb.ListDelayedRequest(name="rpc/late", after=one.about.sequence, limit=1)
    assert list(rpc("ListDelayed", page).messages) == [two]
    wanted = pb.DeleteMessageRequest(name="rpc/late", message_id=one.about.id)
    rpc("DeleteMessage", wanted)
    assert rpc.refused("DeleteMessage", wanted)[0] == "NOT_FOUND"
    assert list(rpc("ListDelayed", pb.ListDelayedRequest(name="rpc/late")).messages) == [two]


@pytest.mark.promise("queues-41")
def test_a_queue_and_a_group_are_paused_and_resumed(broker: BrokerProcess, rpc: RpcClient) -> None:
    async def scenario() -> None:
        client = await worker(broker, "pausing-1")
        await client.consumes("$queue/rpc/pause")
        for group in ("", "pausing"):
            rpc("PauseQueue", pb.PauseQueueRequest(name="rpc/pause", group=group))
            await client.enqueues("$queue/rpc/pause", b"m")
            await client.gets_nothing()
            assert rpc("GetQueueStats", figures("rpc/pause")).paused is not bool(group)
            rpc("ResumeQueue", pb.ResumeQueueRequest(name="rpc/pause", group=group))
            await client.acks(await client.next())
        wanted = pb.PauseQueueRequest(name="rpc/pause", group="none")
        assert rpc.refused("PauseQueue", wanted)[0] == "NOT_FOUND"

    run(scenario())


@pytest.mark.promise("queues-20", "queues-41", "queues-42a")
def test_what_is_told_of_a_queue_is_what_rest_tells(broker: BrokerProcess, rpc: RpcClient) -> None:
    async def scenario() -> None:
        client = await worker(broker, "told-1")
        await client.consumes("$queue/rpc/told", prefetch="1")
        await client.enqueues("$queue/rpc/told", b"\x00\xff", b"two", partition_key="k", colour="red")
        held = await client.next()
        name = "rpc/told"
        stats = rpc("GetQueueStats", figures(name))
        assert (stats.depth, stats.in_flight, stats.enqueued, stats.consumers) == (2, 1, 2, 1)
        assert as_json(stats).keys() == rest(broker, "rpc$told/stats").keys()
        (consumer,) = rpc("ListConsumers", pb.ListConsumersRequest(name=name)).consumers
        (told,) = rest(broker, "rpc$told/consumers")
        assert as_json(consumer) == without_nothing(told)
        (group,) = rpc("ListGroups", pb.ListGroupsRequest(name=name)).groups
        (told,) = rest(broker, "rpc$told/groups")
        assert as_json(group) == without_nothing(told)
        message = rpc("GetMessage", pb.GetMessageRequest(name=name, message_id=held.id))
        assert as_json(message) == without_nothing(rest(broker, f"rpc$told/messages/{held.id}"))
        assert message.states[0].holder == "told-1" and message.key == "k"
        reasons = rpc("ExplainQueue", queue(name)).reasons
        assert [as_json(each) for each in reasons] == rest(broker, "rpc$told/explain")
        assert "'told-1' may have no more" in reasons[0].text
        peeked = rpc("PeekMessages", pb.PeekMessagesRequest(name=name)).messages
        assert [one.payload for one in peeked] == [b"\x00\xff", b"two"]
        assert peeked[0].publisher == "told-1" and peeked[0].about == message
        assert ["colour", "red"] in list(map(list, MessageToDict(peeked[0].properties)["user_properties"]))
        client.close()

    run(scenario())


def as_json(message: Any) -> Any:
    """As REST writes it."""
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return without_nothing(numbers(found))


def numbers(found: Any) -> Any:
    """JSON of protobuf has large numbers as texts."""
    if isinstance(found, dict):
        return {name: int(value) if name in _LARGE else numbers(value) for name, value in found.items()}
    return [numbers(each) for each in found] if isinstance(found, list) else found


_LARGE = {
    field.name
    for kind in pb.DESCRIPTOR.message_types_by_name.values()
    for field in kind.fields
    if field.cpp_type == field.CPPTYPE_UINT64
}


def without_nothing(told: Any) -> Any:
    """Of what REST tells: what is null is not set over gRPC; of a time the milliseconds."""
    if isinstance(told, dict):
        return {name: without_nothing(value) for name, value in told.items() if value is not None}
    if isinstance(told, list):
        return [without_nothing(each) for each in told]
    if isinstance(told, str) and told.endswith("Z"):
        return told.removesuffix("Z").ljust(len("2026-01-01T00:00:00.000"), "0")[:23]
    return told


@pytest.mark.promise("queues-35", "queues-41")
def test_dead_letters_go_back_alone_all_by_filter_and_at_a_rate(
    broker: BrokerProcess, rpc: RpcClient
) -> None:
    async def scenario() -> None:
        client = await worker(broker, "dead-1")
        await client.consumes("$queue/rpc/dead")
        await client.enqueues("$queue/rpc/dead", *[b"bad"] * 6)
        for message in await client.take(6):
            assert (await client.says("reject", message, reason="no good"))[0] == 0
        letters = rpc("ListDeadLetters", pb.ListDeadLettersRequest(name="rpc/dead")).letters
        assert len(letters) == 6 and {letter.last_error for letter in letters} == {"no good"}
        last = pb.ListDeadLettersRequest(name="rpc/dead", after=letters[4].id)
        assert list(rpc("ListDeadLetters", last).letters) == [letters[5]]
        one = rpc("RetryDeadLetter", pb.RetryDeadLetterRequest(name="rpc/dead", id=letters[2].id))
        assert one.messages == 1
        assert (await client.next()).id == letters[2].message_id
        chosen = pb.RedriveDeadLettersRequest(name="rpc/dead", ids=[letters[2].id, letters[5].id])
        done = rpc("RedriveDeadLetters", chosen)
        assert (done.put_back, done.held, done.gone) == (1, 0, 1)
        assert (await client.next()).id == letters[5].message_id
        wanted = pb.LetterFilter(error="no*", group="dead")
        two = rpc("RetryDeadLetters", pb.RetryDeadLettersRequest(name="rpc/dead", filter=wanted, limit=2))
        assert two.messages == 2
        none = pb.RetryDeadLettersRequest(name="rpc/dead", filter=pb.LetterFilter(reason="timeout"))
        assert rpc("RetryDeadLetters", none).messages == 0
        slow = rpc("RetryDeadLetters", pb.RetryDeadLettersRequest(name="rpc/dead", rate=0.01))
        assert slow.job.matched == 2 and slow.job.running
        assert rpc("GetRetry", queue("rpc/dead")).running
        assert not rpc("StopRetry", queue("rpc/dead")).running
        rest_of = rpc("RetryDeadLetters", pb.RetryDeadLettersRequest(name="rpc/dead", rate=1_000)).job
        await client.take(4)
        wait_until(lambda: not rpc("GetRetry", queue("rpc/dead")).running, 30, "the retry has ended")
        assert rpc("GetRetry", queue("rpc/dead")).retried == rest_of.matched
        assert not rpc("ListDeadLetters", pb.ListDeadLettersRequest(name="rpc/dead")).letters
        client.close()

    run(scenario())


@pytest.mark.promise("queues-41")
def test_consumers_keep_their_queue_and_group(broker: BrokerProcess, rpc: RpcClient) -> None:
    async def scenario() -> None:
        client = await worker(broker, "stay-1")
        await client.consumes("$queue/rpc/stay")
        for name, request in (
            ("DeleteQueue", queue("rpc/stay")),
            ("RemoveGroup", pb.RemoveGroupRequest(name="rpc/stay", group="stay")),
        ):
            code, words = rpc.refused(name, request)
            assert code == "FAILED_PRECONDITION" and "consumer" in words
        client.close()
        wait_until(lambda: not rpc("GetQueueStats", figures("rpc/stay")).consumers, 30, "it has left")
        rpc("RemoveGroup", pb.RemoveGroupRequest(name="rpc/stay", group="stay"))
        assert not rpc("ListGroups", pb.ListGroupsRequest(name="rpc/stay")).groups

    run(scenario())


@pytest.mark.promise("queues-41")
def test_what_is_wrong_is_told(rpc: RpcClient) -> None:
    for name, request, code, told in (
        ("GetQueueStats", figures("rpc/none"), "NOT_FOUND", "there is no queue 'rpc/none'"),
        ("PurgeQueue", purged(""), "INVALID_ARGUMENT", "name: is empty"),
        ("PutQueue", pb.PutQueueRequest(name="rpc//x"), "INVALID_ARGUMENT", "empty level"),
        (
            "PutQueue",
            pb.PutQueueRequest(name="rpc/x", settings={"limits": {"overflow": "spill"}}),
            "INVALID_ARGUMENT",
            "limits.overflow",
        ),
        (
            "ListQueues",
            pb.ListQueuesRequest(limit=5_000),
            "INVALID_ARGUMENT",
            "limit: is 5000, expected `int` <= 1000",
        ),
        (
            "PutQueue",
            pb.PutQueueRequest(name="x" * 100_000),
            "RESOURCE_EXHAUSTED",
            "more than the 65536 that one may have",
        ),
    ):
        found, words = rpc.refused(name, request)
        assert found == code and told in words, (name, found, words)


@pytest.mark.promise("queues-41")
def test_a_purge_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def fill(broker: BrokerProcess) -> None:
        client = await worker(broker, "fill-1")
        await client.enqueues("$queue/rpc/purge", *[b"m"] * 40)
        client.close()

    port = free_port()
    with served(tmp_path, port) as broker, RpcClient(port) as rpc:
        run(fill(broker))
        assert rpc("PurgeQueue", purged("rpc/purge")).messages == 40
        rpc("PutQueue", pb.PutQueueRequest(name="rpc/kept", settings=pb.QueueSettings(partitions=3)))
        broker.kill()
        broker.start()
        with RpcClient(port) as again:
            assert again("GetQueueStats", figures("rpc/purge")).depth == 0
            assert again("GetQueue", queue("rpc/kept")).settings.partitions == 3


@pytest.mark.promise("queues-41")
def test_tokens_open_each_call_to_those_whose_scope_allows_it(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, port) as broker:
        with RpcClient(port) as here:
            assert here("ListQueues", pb.ListQueuesRequest()).queues, "without a token this machine may ask"
            code, words = here.refused("ListQueues", pb.ListQueuesRequest(), ("x-forwarded-for", "192.0.2.7"))
            assert code == "PERMISSION_DENIED" and "embermq tokens create" in words
            secrets = [token(broker, scope, scope) for scope in ("read", "operate", "admin")]
            for name, request, _ in CALLS:
                assert here.refused(name, request)[0] == "UNAUTHENTICATED", "with the first one all need one"
        for rank, secret in enumerate(secrets):
            with RpcClient(port, secret) as client:
                for name, request, least in CALLS:
                    if name == "ListQueues":
                        assert client(name, request).queues
                        continue
                    code, words = client.refused(name, request)
                    expected = "INVALID_ARGUMENT" if name == "PutQueue" else "NOT_FOUND"
                    assert code == (expected if rank >= least else "PERMISSION_DENIED"), (name, words)
        with RpcClient(port, "emq_guessed") as stranger:
            code, words = stranger.refused("PurgeQueue", purged("rpc/dead"))
            assert code == "UNAUTHENTICATED" and "guessed" not in words
        assert not any(secret in broker.output() for secret in secrets)


def own_address() -> str:
    """An address of this machine that is not loopback: the one that a packet to elsewhere would have; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        found: str = sock.getsockname()[0]
    return found


@pytest.mark.promise("queues-41")
def test_others_are_let_in_by_token_alone(tmp_path: Path) -> None:
    port, address = free_port(), own_address()
    everywhere = f"0.0.0.0:{port}"
    plain = {f'listener."{everywhere}".plaintext': "true"}
    with queue_broker(tmp_path, QUEUES, listeners__grpc=everywhere, **plain) as broker:
        with RpcClient(port, host=address) as elsewhere, RpcClient(port) as here:
            code, words = elsewhere.refused("ListQueues", pb.ListQueuesRequest())
            assert code == "PERMISSION_DENIED" and "for this machine alone" in words
            assert here("ListQueues", pb.ListQueuesRequest()).queues
            secret = token(broker, "far", "read")
            assert elsewhere.refused("ListQueues", pb.ListQueuesRequest())[0] == "UNAUTHENTICATED"
        with RpcClient(port, secret, host=address) as known:
            assert known("ListQueues", pb.ListQueuesRequest()).queues


def loads_grpc(broker: BrokerProcess) -> bool:
    return "/grpc/_cython/" in Path(f"/proc/{broker.pid}/maps").read_text()


@pytest.mark.promise("queues-41")
def test_grpc_is_loaded_by_its_first_caller(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, port) as broker:
        assert f"grpc       127.0.0.1:{port}\n" in broker.output()
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=30)
        assert not loads_grpc(broker), "what does not speak gRPC is no caller"
        with RpcClient(port) as rpc:
            rpc("ListQueues", pb.ListQueuesRequest())
            assert loads_grpc(broker)
            assert broker.stop() == 0, "an open connection keeps it from nothing"
        assert not list(broker.data_dir.glob("grpc*.sock"))
        broker.start()
        with RpcClient(port) as rpc:
            rpc("ListQueues", pb.ListQueuesRequest())
            broker.kill()
        broker.start()
        with RpcClient(port) as rpc:
            assert rpc("ListQueues", pb.ListQueuesRequest()).queues
        assert "Traceback" not in broker.output() and "E0000" not in broker.output()


@pytest.mark.promise("queues-41")
def test_where_there_are_no_queues_nobody_listens(tmp_path: Path) -> None:
    port = free_port()
    with BrokerProcess(
        tmp_path / "data", settings={"queues.enabled": "false", "listeners.grpc": f"127.0.0.1:{port}"}
    ) as broker:
        assert "grpc" not in broker.output()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = served(tmp_path, port)
        broker.launch()
        assert broker.wait() == 1
        assert f"listeners.grpc: cannot listen on 127.0.0.1:{port}: Address already in use" in broker.output()
        broker.close()


def test_a_broker_that_nobody_told_of_grpc_does_without_where_its_port_is_taken(tmp_path: Path) -> None:
    host, _, port = DEFAULT_GRPC.rpartition(":")
    with ExitStack() as taken:
        with suppress(OSError):  # another program has it already, which is as good
            taken.enter_context(socket.create_server((host, int(port))))
        with BrokerProcess(tmp_path / "data", settings={"listeners.grpc": DEFAULT_GRPC}) as broker:
            assert f"gRPC is not served: another program has {DEFAULT_GRPC}" in broker.output()


def test_a_call_under_way_is_finished_when_the_broker_stops(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, port) as broker, RpcClient(port) as rpc:
        rpc("ListQueues", pb.ListQueuesRequest())
        assert broker.stop() == 0
        code, _ = rpc.refused("ListQueues", pb.ListQueuesRequest())
        assert code == grpc.StatusCode.UNAVAILABLE.name
