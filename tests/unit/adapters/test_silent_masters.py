"""What is said of masters that do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import pytest
import redis

from embermq.adapters.redis.blocking import tell_silent
from embermq.ports.store_node import Node

VIEW = {
    "a:1": {"node_id": "A", "flags": "myself,master", "master_id": "-", "slots": [["0", "99"]]},
    "b:2": {"node_id": "B", "flags": "master,fail", "master_id": "-", "slots": [["100", "199"], ["300"]]},
    "c:3": {"node_id": "C", "flags": "slave", "master_id": "B", "slots": []},
    "d:4": {"node_id": "D", "flags": "master,fail", "master_id": "-", "slots": []},
}


class Server:
    """One that answers; a node that is not among `present` does not."""

    def __init__(self, place: str, present: str) -> None:
        self._answers = place in present.split()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def execute_command(self, words: str) -> Mapping[str, object] | str:
        if not self._answers:
            raise redis.ConnectionError("refused")
        if words == "PING":
            raise redis.ResponseError("NOPERM")  # that is an answer, too
        return VIEW


SILENT = "the master b:2 (slots 100-199, 300) does not answer: bring it back, or "


@pytest.mark.parametrize(
    ("present", "told"),
    [
        ("a:1 b:2 c:3", ""),
        ("a:1 c:3", SILENT + "have its replica c:3 take its place (CLUSTER FAILOVER TAKEOVER)"),
        ("a:1", SILENT + "a server with a copy of its data; no replica of it answers"),
        ("", ""),
    ],
)
def test_it_names_the_node_its_slots_and_what_there_is_in_its_place(present: str, told: str) -> None:
    nodes = [Node("b", 2), Node("a", 1)]
    assert tell_silent(nodes, lambda node: Server(str(node), present)) == told
