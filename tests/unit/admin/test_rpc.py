"""gRPC over the desk and the core: what is answered, what is refused, whom the door lets in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct
from msgspec.structs import fields
from tests.support.queue_bench import START_MS
from tests.support.queue_desk import DeskBench
from tests.support.rpc_served import ANSWER_S, Asking, Tokens, carried_out

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.access import Scope, TokenAccess
from embermq.admin.queue_values import Configured, LettersWanted, PutBack, QueueDetail, Retried, RetryJob
from embermq.admin.rpc_server import CALLS, SERVICE
from embermq.admin.trail import ChangeBegun
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.queues.explaining import Reason
from embermq.queues.inspection import (
    ConsumerView,
    DeadLetterView,
    GroupView,
    MessageView,
    QueueStats,
    StandingView,
)
from embermq.queues.names import Verb
from embermq.queues.settings import (
    DeadLetterConfig,
    Limits,
    Performance,
    QueueSettings,
    RetryPolicy,
)

READ, OPERATE, ADMIN = Scope.READ, Scope.OPERATE, Scope.ADMIN
QUEUE = pb.QueueRequest(name="q")
WITH_COLOUR = Properties(user_properties=(("colour", "red"),))


KINDS: list[tuple[type[Any], type[Struct]]] = [
    (pb.QueueStats, QueueStats),
    (pb.Queue, QueueDetail),
    (pb.Group, GroupView),
    (pb.Consumer, ConsumerView),
    (pb.Message, MessageView),
    (pb.Standing, StandingView),
    (pb.Reason, Reason),
    (pb.DeadLetter, DeadLetterView),
    (pb.RetryJob, RetryJob),
    (pb.RedriveDeadLettersResponse, PutBack),
    (pb.PutQueueResponse, Configured),
    (pb.QueueSettings, QueueSettings),
    (pb.RetryPolicy, RetryPolicy),
    (pb.DeadLetterConfig, DeadLetterConfig),
    (pb.Limits, Limits),
    (pb.Performance, Performance),
]


@pytest.mark.parametrize(("kind", "struct"), KINDS, ids=lambda each: each.__name__)
def test_what_an_operation_says_has_a_field_of_the_same_name(kind: type[Any], struct: type[Struct]) -> None:
    assert {info.name for info in fields(struct)} == set(kind.DESCRIPTOR.fields_by_name)


def test_a_retry_of_all_says_what_the_operation_says_and_has_its_job_besides() -> None:
    theirs = set(pb.RetryDeadLettersResponse.DESCRIPTOR.fields_by_name)
    assert theirs == {info.name for info in fields(Retried)} | {"job"}


def test_a_filter_can_ask_for_all_that_the_operation_can_look_for() -> None:
    theirs = set(pb.LetterFilter.DESCRIPTOR.fields_by_name)
    assert theirs == {info.name for info in fields(LettersWanted)}


def test_every_call_of_the_description_is_answered() -> None:
    described = pb.DESCRIPTOR.services_by_name["QueueAdmin"].methods_by_name
    assert set(CALLS) == set(described)
    for name, call in CALLS.items():
        assert described[name].input_type.full_name == call.request.DESCRIPTOR.full_name
        words = (Path(__file__).parents[3] / "src/embermq/admin/queue_admin.proto").read_text()
        comment = words.partition(f"  rpc {name}(")[0].rstrip().rpartition("\n")[2]
        assert comment.endswith(f"Scope {call.operation.scope}."), name


@pytest.mark.promise("queues-41")
def test_a_queue_is_made_changed_shown_and_deleted(tmp_path: Path) -> None:
    bench = DeskBench()

    async def work(ask: Asking) -> None:
        settings = pb.QueueSettings(partitions=4, limits=pb.Limits(message_ttl="90s"))
        made = await ask("PutQueue", pb.PutQueueRequest(name="tasks/images", settings=settings))
        assert made.created and made.settings.partitions == 4 and made.settings.limits.message_ttl == "90s"
        assert bench.commits, "answered when it is durable"
        assert not made.settings.dlq_config.HasField("alert_webhook")
        assert made.settings.retry_policy.max_backoff == "5m"
        changed = await ask("PutQueue", pb.PutQueueRequest(name="$queue/tasks/images"))
        assert not changed.created and changed.settings.partitions == 10
        shown = await ask("GetQueue", pb.QueueRequest(name="tasks/images"))
        assert shown.settings == changed.settings and shown.stats.name == "tasks/images"
        listed = await ask("ListQueues", pb.ListQueuesRequest(match="tasks/*"))
        assert [one.name for one in listed.queues] == ["tasks/images"]
        first = await ask("ListQueues", pb.ListQueuesRequest(limit=1))
        assert [one.name for one in first.queues] == ["q"]
        rest = await ask("ListQueues", pb.ListQueuesRequest(after="q"))
        assert [one.name for one in rest.queues] == ["tasks/images"]
        assert (await ask("DeleteQueue", pb.QueueRequest(name="tasks/images"))).messages == 0
        assert [row.name for row in bench.rows.queues.values()] == ["q"]

    carried_out(bench, tmp_path, work)


@pytest.mark.promise("queues-33", "queues-41")
def test_settings_that_cannot_be_are_refused_by_name(tmp_path: Path) -> None:
    async def work(ask: Asking) -> None:
        for settings, told in (
            (pb.QueueSettings(partitions=0), "partitions"),
            (pb.QueueSettings(ordering="sideways"), "ordering"),
            (pb.QueueSettings(ordering="strict", partitions=2), "partitions: is 2, ordering strict has 1"),
            (pb.QueueSettings(retry_policy=pb.RetryPolicy(max_backoff="soon")), "'soon' is no duration"),
            (pb.QueueSettings(retry_policy=pb.RetryPolicy(backoff_multiplier=float("nan"))), "backoff_multi"),
            (pb.QueueSettings(name="b"), "name: is 'b'"),
        ):
            code, words = await ask.refused("PutQueue", pb.PutQueueRequest(name="a", settings=settings))
            assert code == "INVALID_ARGUMENT" and told in words, words
        for name, told in (
            ("a//b", "empty level"),
            ("responses/me", "responses/"),
            ("", "name: is empty"),
        ):
            code, words = await ask.refused("PutQueue", pb.PutQueueRequest(name=name))
            assert code == "INVALID_ARGUMENT" and told in words, words
        assert [one.name for one in (await ask("ListQueues", pb.ListQueuesRequest())).queues] == ["q"]
        assert (await ask("PutQueue", pb.PutQueueRequest(name="a"))).created
        code, words = await ask.refused("PutQueue", pb.PutQueueRequest(name="b"))
        assert code == "FAILED_PRECONDITION" and "queues_max is 2" in words

    carried_out(DeskBench(queues_max=2), tmp_path, work)


@pytest.mark.promise("queues-20", "queues-41")
def test_messages_consumers_groups_and_why(tmp_path: Path) -> None:
    bench = DeskBench()
    bench.bodies = {
        0: Message("$queue/q", b"one", 1, False, "p", 5, START_MS, 0, WITH_COLOUR),
        1: Message("$queue/q", b"\xff", 1, False, "p", 5, START_MS),
        2: None,
        3: Message("$queue/q", "ä".encode() * 40_000, 1, False, "p", 4, START_MS),
    }
    bench.join("c", prefetch=1)
    bench.publish("k")
    bench.publish(count=3)

    async def work(ask: Asking) -> None:
        peeked = (await ask("PeekMessages", pb.PeekMessagesRequest(name="q"))).messages
        assert [one.payload for one in peeked[:3]] == [b"one", b"\xff", b""]
        assert [one.HasField("payload") for one in peeked[:3]] == [True, True, False]
        assert peeked[3].payload_bytes == 80_000 and peeked[3].payload == "ä".encode() * 32_768
        assert [one.about.HasField("key") for one in peeked] == [True, False, False, False]
        assert peeked[0].publisher == "p"
        assert ["colour", "red"] in list(map(list, peeked[0].properties["user_properties"]))
        behind = await ask("PeekMessages", pb.PeekMessagesRequest(name="q", after=1, limit=1))
        assert [one.about.sequence for one in behind.messages] == [2]
        request = pb.GetMessageRequest(name="q", message_id=peeked[0].about.id)
        message = await ask("GetMessage", request)
        (state,) = message.states
        assert (state.state, state.holder, state.deliveries) == ("DELIVERED", "c", 1)
        assert state.lease_until.ToMilliseconds() == START_MS + 30_000
        assert message.arrived.ToMilliseconds() == START_MS and not state.HasField("next_retry")
        (consumer,) = (await ask("ListConsumers", pb.ListConsumersRequest(name="q"))).consumers
        assert consumer.client_id == "c" and list(consumer.partitions) == list(range(10))
        assert consumer.joined.ToMilliseconds() == START_MS
        (group,) = (await ask("ListGroups", pb.ListGroupsRequest(name="q"))).groups
        assert group.lag == 4 and not group.HasField("idle_since")
        assert list((await ask("GetQueue", QUEUE)).groups) == [group]
        (why,) = (await ask("ExplainQueue", QUEUE)).reasons
        assert why.code == "window_full" and "'c' may have no more" in why.text
        stats = await ask("GetQueueStats", QUEUE)
        assert (stats.in_flight, stats.depth, stats.oldest.ToMilliseconds()) == (1, 4, START_MS)
        assert set(stats.delivery_latency_s) == {"0.5", "0.95", "0.99"}

    carried_out(bench, tmp_path, work)


@pytest.mark.promise("queues-35", "queues-41")
def test_dead_letters_are_listed_and_put_back(tmp_path: Path) -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=4)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def work(ask: Asking) -> None:
        letters = (await ask("ListDeadLetters", pb.ListDeadLettersRequest(name="q"))).letters
        assert [(one.queue, one.group, one.reason, one.last_error) for one in letters] == [
            ("q", "g", "rejected", "why")
        ] * 4
        page = pb.ListDeadLettersRequest(name="dlq/q", after=letters[0].id, limit=2)
        assert list((await ask("ListDeadLetters", page)).letters) == letters[1:3]
        when = letters[0].moved
        after, before = pb.LetterFilter(moved_after=when), pb.LetterFilter(moved_before=when)
        later = Timestamp(seconds=when.seconds + 1, nanos=when.nanos)
        until = pb.LetterFilter(moved_before=later, error="w*", message_id=letters[3].message_id)
        for wanted, count in ((after, 0), (before, 0), (until, 1), (pb.LetterFilter(group="h"), 0)):
            found = await ask("ListDeadLetters", pb.ListDeadLettersRequest(name="q", filter=wanted))
            assert len(found.letters) == count, wanted
        one = await ask("RetryDeadLetter", pb.RetryDeadLetterRequest(name="q", id=letters[0].id))
        assert one.messages == 1
        code, words = await ask.refused("RetryDeadLetter", pb.RetryDeadLetterRequest(name="q", id="x"))
        assert code == "NOT_FOUND" and "no dead letter 'x'" in words
        asked = pb.RedriveDeadLettersRequest(name="q", ids=[letters[0].id, "1-99"])
        done = await ask("RedriveDeadLetters", asked)
        assert (done.put_back, done.held, done.gone) == (0, 0, 2)
        some = await ask("RetryDeadLetters", pb.RetryDeadLettersRequest(name="q", limit=1))
        assert some.messages == 1 and not some.HasField("job")
        assert await ask.refused("GetRetry", QUEUE) == ("NOT_FOUND", "no retry with a rate has been started")
        slow = await ask("RetryDeadLetters", pb.RetryDeadLettersRequest(name="q", rate=0.001))
        assert (slow.job.matched, slow.job.running, slow.job.rate) == (2, True, 0.001)
        code, words = await ask.refused("RetryDeadLetters", pb.RetryDeadLettersRequest(name="q", rate=1))
        assert code == "FAILED_PRECONDITION" and "already" in words
        assert (await ask("GetRetry", QUEUE)).running
        assert not (await ask("StopRetry", QUEUE)).running
        assert await ask.refused("StopRetry", QUEUE) == ("NOT_FOUND", "no retry runs")

    carried_out(bench, tmp_path, work)


@pytest.mark.promise("queues-35", "queues-41")
def test_orphaned_dead_letters_are_told_with_their_queues(tmp_path: Path) -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=2)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)
    bench.leave("c")

    async def work(ask: Asking) -> None:
        await ask("DeleteQueue", QUEUE)
        found = (await ask("ListDeadLetters", pb.ListDeadLettersRequest(name="dlq/q"))).letters
        ids = [letter.id for letter in found]
        done = await ask("RedriveDeadLetters", pb.RedriveDeadLettersRequest(name="dlq/q", ids=ids))
        assert (done.put_back, done.orphaned, list(done.missing_queues)) == (0, 2, ["q"])
        every = await ask("RetryDeadLetters", pb.RetryDeadLettersRequest(name="dlq/q"))
        assert (every.messages, every.orphaned, list(every.missing_queues)) == (0, 2, ["q"])
        slow = (await ask("RetryDeadLetters", pb.RetryDeadLettersRequest(name="dlq/q", rate=1))).job
        assert (slow.running, slow.orphaned, list(slow.missing_queues)) == (False, 2, ["q"])
        assert not any(told.crowded or told.full_queues for told in (done, every, slow))
        one = pb.RetryDeadLetterRequest(name="dlq/q", id=ids[0])
        code, words = await ask.refused("RetryDeadLetter", one)
        assert code == "FAILED_PRECONDITION" and "comes from queue q, which is not there any more" in words

    carried_out(bench, tmp_path, work)


@pytest.mark.promise("queues-41")
def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    retry, letters = "RetryDeadLetters", "ListDeadLetters"
    far, wrong = Timestamp(seconds=-1), Timestamp(seconds=1, nanos=-1)

    async def work(ask: Asking) -> None:
        for name, request, told in (
            ("ListQueues", pb.ListQueuesRequest(limit=1_001), "limit: is 1001, expected `int` <= 1000"),
            ("ListQueues", pb.ListQueuesRequest(match="?" * 301), "expected `str` of length <= 300"),
            (
                "PeekMessages",
                pb.PeekMessagesRequest(name="q", limit=101),
                "limit: is 101, expected `int` <= 100",
            ),
            ("ListGroups", pb.ListGroupsRequest(name="q", limit=1_001), "limit"),
            ("ListConsumers", pb.ListConsumersRequest(name="q", limit=1_001), "limit"),
            (letters, pb.ListDeadLettersRequest(name="q", limit=1_001), "limit"),
            (letters, pb.ListDeadLettersRequest(name="q", after="x" * 81), "expected `str` of length <= 80"),
            (letters, pb.ListDeadLettersRequest(name="q", filter={"error": "*" * 301}), "error: is"),
            (letters, pb.ListDeadLettersRequest(name="q", filter={"message_id": "1" * 81}), "message_id"),
            (letters, pb.ListDeadLettersRequest(name="q", filter={"moved_after": far}), "moved_after: -1 s"),
            (letters, pb.ListDeadLettersRequest(name="q", filter={"moved_after": wrong}), "moved_after: "),
            (retry, pb.RetryDeadLettersRequest(name="q", rate=-1), "rate: is -1"),
            (retry, pb.RetryDeadLettersRequest(name="q", rate=float("nan")), "rate: is nan"),
            (retry, pb.RetryDeadLettersRequest(name="q", rate=float("inf")), "rate: is inf"),
            (
                "PutQueue",
                pb.PutQueueRequest(name="q", settings={"ordering": "\U0001f600" * 9_000}),
                "ordering",
            ),
            (retry, pb.RetryDeadLettersRequest(name="q", rate=1e-300), "rate: is 1e-300"),
            (
                retry,
                pb.RetryDeadLettersRequest(name="q", filter={"reason": "timeuot"}),
                "reason: is 'timeuot'",
            ),
            (retry, pb.RetryDeadLettersRequest(name="q", rate=1, limit=5), "together with a rate"),
            (retry, pb.RetryDeadLettersRequest(name="q", limit=100_001), "limit: is 100001"),
            ("GetQueue", pb.QueueRequest(), "name: is empty"),
            (
                "RedriveDeadLetters",
                pb.RedriveDeadLettersRequest(name="q"),
                "ids: is []",
            ),
            (
                "RedriveDeadLetters",
                pb.RedriveDeadLettersRequest(name="q", ids=["x"] * 1_001),
                "of length <= 1000",
            ),
            ("RedriveDeadLetters", pb.RedriveDeadLettersRequest(name="q", ids=["x" * 81]), "ids[0]: is 'xxx"),
        ):
            code, words = await ask.refused(name, request)
            assert code == "INVALID_ARGUMENT" and told in words, (name, words)
        raw = ask.channel.unary_unary(f"/{SERVICE}/GetQueue")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await raw(b"\xff\xff\xff", timeout=ANSWER_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not the message of this call" in (refused.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask.channel.unary_unary(f"/{SERVICE}/Nothing")(b"", timeout=ANSWER_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    carried_out(DeskBench(), tmp_path, work)


@pytest.mark.promise("queues-41")
def test_every_call_says_that_there_is_no_such_queue(tmp_path: Path) -> None:
    async def work(ask: Asking) -> None:
        for name, call in CALLS.items():
            if name not in ("ListQueues", "PutQueue"):
                more = {"ids": ["1-1"]} if name == "RedriveDeadLetters" else {}
                code, words = await ask.refused(name, call.request(name="none", **more))
                assert (code, words) == ("NOT_FOUND", "there is no queue 'none'"), name

    carried_out(DeskBench(), tmp_path, work)


@pytest.mark.promise("queues-41")
def test_tokens_have_scopes(tmp_path: Path) -> None:
    tokens = Tokens()
    access = TokenAccess(tokens, lambda: 1_000)
    secrets = {scope: tokens.add(scope) for scope in Scope}
    ranks = {Scope.READ: 0, Scope.OPERATE: 1, Scope.ADMIN: 2, Scope.RULES: 0}

    async def work(ask: Asking) -> None:
        for name, call in CALLS.items():
            others: dict[str, dict[str, Any]] = {
                "ListQueues": {},
                "PutQueue": {"name": "none//"},
                "RedriveDeadLetters": {"name": "none", "ids": ["1-1"]},
            }
            wanted = others.get(name, {"name": "none"})
            request = call.request(**wanted)
            answer = {"ListQueues": "OK", "PutQueue": "INVALID_ARGUMENT"}.get(name, "NOT_FOUND")
            for scope, secret in secrets.items():
                code = await ask.code(name, request, authorization=f"Bearer {secret}")
                if ranks[scope] < ranks[call.operation.scope]:
                    assert code == "PERMISSION_DENIED", (name, scope)
                else:
                    assert code == answer, (name, scope)
            for wrong in ("", "Bearer nonsense", "Bearer ", "Basic x"):
                code, words = await ask.refused(name, request, **({"authorization": wrong} if wrong else {}))
                assert code == "UNAUTHENTICATED" and "nonsense" not in words

    carried_out(DeskBench(), tmp_path, work, access)


class TrailKept:
    """In memory."""

    def __init__(self) -> None:
        self.changes: list[tuple[ChangeBegun, list[str]]] = []

    async def begin(self, change: ChangeBegun) -> str:
        self.changes.append((change, []))
        return str(len(self.changes) - 1)

    def end(self, change_id: str, outcome: str) -> None:
        self.changes[int(change_id)][1].append(outcome)


def test_changes_are_in_the_audit_trail_with_who_has_asked(tmp_path: Path) -> None:
    tokens, trail = Tokens(), TrailKept()
    access = TokenAccess(tokens, lambda: 1_000)

    async def work(ask: Asking) -> None:
        admin = f"Bearer {tokens.add(ADMIN)}"
        await ask("PutQueue", pb.PutQueueRequest(name="q"), authorization=admin)
        await ask("GetQueue", QUEUE, authorization=admin)
        await ask.refused("PurgeQueue", pb.QueueRequest(name="none"), authorization=admin)
        await ask.refused("PurgeQueue", QUEUE)

    carried_out(DeskBench(), tmp_path, work, access, trail=trail)
    (put, done), (purge, refused) = trail.changes
    assert (put.operation, put.object, put.over, put.peer) == ("PutQueue", {"name": "q"}, "grpc", "127.0.0.1")
    assert put.by.startswith("token ") and done == ["done"]
    assert (purge.operation, purge.object) == ("PurgeQueue", {"name": "none"})
    assert len(refused) == 1 and refused[0].startswith("refused: ")


def test_where_alerts_go_is_seen_by_who_may_change_it(tmp_path: Path) -> None:
    tokens = Tokens()
    access = TokenAccess(tokens, lambda: 1_000)

    async def work(ask: Asking) -> None:
        letters = pb.DeadLetterConfig(enabled=True, alert_webhook="https://hooks.example/hidden")
        asked = pb.PutQueueRequest(name="q", settings=pb.QueueSettings(dlq_config=letters))
        admin, reader = (f"Bearer {tokens.add(scope)}" for scope in (ADMIN, READ))
        await ask("PutQueue", asked, authorization=admin)
        for secret, expected in (
            (admin, "https://hooks.example/hidden"),
            (reader, "https://hooks.example/***"),
        ):
            shown = await ask("GetQueue", QUEUE, authorization=secret)
            assert shown.settings.dlq_config.alert_webhook == expected

    carried_out(DeskBench(), tmp_path, work, access)


@pytest.mark.promise("queues-41")
@pytest.mark.parametrize("is_near", [True, False])
def test_without_a_token_this_machine_alone_gets_in(
    is_near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "embermq.admin.rpc_listener.is_loopback", lambda host: is_near and host == "127.0.0.1"
    )
    tokens = Tokens()

    async def work(ask: Asking) -> None:
        if is_near:
            assert (await ask("GetQueueStats", QUEUE)).name == "q"
        for metadata in (
            {"x_forwarded_for": "192.0.2.7"},
            {"x_forwarded_proto": "https"},
            {"x_original_forwarded_for": "192.0.2.7"},
            {"via": "2 proxy"},
            {"origin": "http://evil.example"},
            {"x_grpc_web": "1"},
            *([] if is_near else [{}]),
        ):
            for name, request in (("ListQueues", pb.ListQueuesRequest()), ("PurgeQueue", QUEUE)):
                code, words = await ask.refused(name, request, **metadata)
                assert code == "PERMISSION_DENIED" and "embermq tokens create" in words
        code, _ = await ask.refused("GetQueueStats", QUEUE, authorization="Bearer x")
        assert code == "UNAUTHENTICATED"
        secret = tokens.add(READ)
        assert (await ask("GetQueueStats", QUEUE, authorization=f"Bearer {secret}")).name == "q"
        assert (await ask.refused("GetQueueStats", QUEUE))[0] == "UNAUTHENTICATED"

    carried_out(DeskBench(), tmp_path, work, TokenAccess(tokens, lambda: 0))


@pytest.mark.promise("queues-41")
def test_a_store_that_does_not_answer_and_a_fault_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("embermq.admin.queue_desk.STORE_WAIT_S", 0.01)
    bench = DeskBench()

    async def work(ask: Asking) -> None:
        bench.failing = 1_000_000
        code, words = await ask.refused("PurgeQueue", QUEUE)
        assert code == "UNAVAILABLE" and "has not confirmed it in 0.01 s" in words
        bench.failing = 0

        def broken(name: str) -> None:
            raise RuntimeError("a secret text")

        monkeypatch.setattr(bench.desk, "stats", broken)
        assert await ask.refused("GetQueueStats", QUEUE) == ("INTERNAL", "the broker's log says more")

    carried_out(bench, tmp_path, work)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("embermq")] == [
        "GetQueueStats failed"
    ]


def test_the_event_loop_hears_that_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler ends the process."""
    heard: list[object] = []
    bench = DeskBench()

    def exhausted(name: str) -> None:
        raise MemoryError

    async def work(ask: Asking) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context.get("exception")))
        monkeypatch.setattr(bench.desk, "stats", exhausted)
        assert (await ask.refused("GetQueueStats", QUEUE))[0] == "INTERNAL"

    carried_out(bench, tmp_path, work)
    assert [type(error) for error in heard] == [MemoryError]


def test_large_answers_go_through_a_slow_reader(tmp_path: Path) -> None:
    """The door holds no more than its sockets do, and loses nothing."""
    bench = DeskBench()
    body = bytes(range(256)) * 256
    bench.bodies = {offset: Message("$queue/q", body, 1, False, "p", 5, START_MS) for offset in range(60)}
    bench.publish(count=60)

    async def work(ask: Asking) -> None:
        found = await ask("PeekMessages", pb.PeekMessagesRequest(name="q", limit=100))
        assert len(found.messages) == 47, "as many as 3 MiB hold"
        assert all(one.payload == body for one in found.messages)

    carried_out(bench, tmp_path, work)
