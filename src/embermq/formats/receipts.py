"""Samples of delivery latency, in the broker and as they stand in Kafka, many in one record: the only place that knows.

Inside the broker, and in broker.db one behind the other, a sample is `SAMPLE` and the first topic level behind it.

    key        none
    value      JSON, an array with an object for each sample: `t` accepted at, Unix milliseconds; `l` microseconds from
               there to the client's acknowledgement; `c` client type, 0 DEVICE and 1 APPLICATION; `r` first topic level
    timestamp  when it was written, Unix milliseconds

Header `v` is the format, "1.0": a reader refuses a larger major, and passes over what it does not know in an object.
"""

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Any

import msgspec

VERSION = "1.0"
MAJOR = 1
HEADERS: list[tuple[str, bytes]] = [("v", VERSION.encode())]

SAMPLE = Layout(">qIBB")
"""accepted_ms, latency_us, client type, length of the first topic level that follows."""


def receipts_topic(prefix: str) -> str:
    """Name of the topic, for a broker's prefix."""
    return f"{prefix}.receipts"


def encode_receipts(samples: Iterable[bytes]) -> bytes:
    """The value of one record; a sample that is cut short is a ValueError."""
    return msgspec.json.encode([_shown(sample) for sample in samples])


def _shown(sample: bytes) -> dict[str, Any]:
    if len(sample) < SAMPLE.size or len(sample) != SAMPLE.size + sample[SAMPLE.size - 1]:
        raise ValueError(f"a sample of {len(sample)} bytes is cut short")
    accepted_ms, latency_us, client_type, _ = SAMPLE.unpack_from(sample)
    return {"t": accepted_ms, "l": latency_us, "c": client_type, "r": sample[SAMPLE.size :].decode()}
