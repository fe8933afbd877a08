"""The calls of queue_admin.proto: the operations of the same names [queues-41]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.asking import request_of
from embermq.admin.forwarding import do_on_any_node
from embermq.admin.operation import AdminOperation
from embermq.admin.operations import QUEUE_OPERATIONS
from embermq.admin.queue_values import RetryJob
from embermq.admin.rpc_values import said, written
from embermq.ports.errors import StoreUnavailable

SERVICE = "embermq.v1.QueueAdmin"
ANSWER_BYTES_MAX = 3 * 1024 * 1024
"""Of a page: clients take 4 MiB, unless they are told otherwise."""


class Call(Struct, frozen=True):
    """An operation with the messages that it has over gRPC."""

    operation: AdminOperation
    request: type[Message]
    response: type[Message]

    def asked(self, message: Message) -> Struct:
        """The request of the operation. Raises RequestRefused."""
        request: Struct = request_of(self.operation, said(message, self.operation.request), as_text=False)
        return request

    async def answer(self, desk: object, request: Struct, *, is_admin: bool, by: str, peer: str) -> Message:
        """Raises what the operation does, and StoreUnavailable for a list of which a part is missing."""
        done = await do_on_any_node(self.operation, desk, request, by=by, peer=peer)
        if done.missing:
            slots = ", ".join(map(str, done.missing))
            raise StoreUnavailable(f"of the cluster's slots no node has answered for: {slots}")
        found = done.answer
        if found is None:
            return self.response()
        if self.operation.without_secrets is not None and not is_admin:
            found = self.operation.without_secrets(found)
        if isinstance(found, RetryJob) and self.response is pb.RetryDeadLettersResponse:
            return pb.RetryDeadLettersResponse(messages=found.retried, job=written(pb.RetryJob, found))
        if isinstance(found, Sequence):
            return self._page(found)
        return written(self.response, found)

    def _page(self, values: Iterable[Struct]) -> Message:
        """As many as an answer holds, one at least: who asks for the next page names the last of this one."""
        (field,) = self.response.DESCRIPTOR.fields
        page: list[Message] = []
        size = 0
        for value in values:
            message = written(field.message_type._concrete_class, value)
            size += message.ByteSize()
            if page and size > ANSWER_BYTES_MAX:
                break
            page.append(message)
        return self.response(**{field.name: page})


def _calls() -> dict[str, Call]:
    methods: Any = pb.DESCRIPTOR.services_by_name["QueueAdmin"].methods_by_name
    by_name = {each.name: each for each in QUEUE_OPERATIONS}
    return {
        name: Call(by_name[name], method.input_type._concrete_class, method.output_type._concrete_class)
        for name, method in methods.items()
    }


CALLS = _calls()
