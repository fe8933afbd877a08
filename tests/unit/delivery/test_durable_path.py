"""Samples of delivery latency."""

from __future__ import annotations

import struct

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.delivery.durable_path import SAMPLE_EVERY


@pytest.mark.parametrize("level", ["a", "ä" * 200, "🦊" * 100, "x" * 254 + "ä"])
def test_one_delivery_in_so_many_is_sampled_with_its_first_level(level: str) -> None:
    hand = HandDrivenBroker()
    subscriber, publisher = hand.keeps("s"), hand.connects("p")
    subscriber.subscribes("#", qos=1)
    written: list[bytes] = []
    apply = hand.store._apply

    def watch(writes: object) -> None:
        written.extend(writes.receipts)  # type: ignore[attr-defined]
        apply(writes)  # type: ignore[arg-type]

    hand.store._apply = watch  # type: ignore[method-assign]
    for number in range(2 * SAMPLE_EVERY):
        publisher.publishes(f"{level}/x", b"x", first_id=number + 1)
        hand.settle()
    assert len(written) == 2
    accepted_ms, latency_us, client_type, size = struct.unpack_from(">qIBB", written[0])
    assert (accepted_ms, latency_us, client_type) == (hand.now_ms, 0, 0)
    root = written[0][14:].decode()
    assert len(written[0]) == 14 + size
    assert level.startswith(root)
    assert len(root) >= min(len(level), 60)
