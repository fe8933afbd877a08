"""Whether a dead-letter alert was sent by the broker, for the service that is the webhook."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping

TIMESTAMP_HEADER = "EmberMQ-Timestamp"
SIGNATURE_HEADER = "EmberMQ-Signature"


def is_genuine(
    secret: bytes,
    headers: Mapping[str, str],
    body: bytes,
    *,
    age_s_max: float = 300,
    now_s: float | None = None,
) -> bool:
    """Whether the broker that knows `secret` signed this `body`, and not longer than `age_s_max` ago. `secret` is what
    the secret's file holds; a line end does not count.

    The signature is `sha256=` and the hex HMAC-SHA256 of the timestamp (Unix seconds), a full stop and the body. Names
    of headers are compared without case.
    """
    found = {name.lower(): value for name, value in headers.items()}
    timestamp = found.get(TIMESTAMP_HEADER.lower(), "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return False
    if abs((time.time() if now_s is None else now_s) - int(timestamp)) > age_s_max:
        return False
    wanted = "sha256=" + hmac.digest(secret.rstrip(b"\r\n"), timestamp.encode() + b"." + body, "sha256").hex()
    return hmac.compare_digest(wanted.encode(), found.get(SIGNATURE_HEADER.lower(), "").encode())
