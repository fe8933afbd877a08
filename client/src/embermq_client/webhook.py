"""Whether a dead-letter alert was sent by the broker, for the service that is the webhook."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping

TIMESTAMP_HEADER = "EmberMQ-Timestamp"
SIGNATURE_HEADER = "EmberMQ-Signature"
SECRET_BYTES_MIN = 16


def is_genuine(
    secret: bytes,
    headers: Mapping[str, str],
    body: bytes,
    *,
    age_s_max: float = 300,
    now_s: float | None = None,
) -> bool:
    """Whether the broker that knows `secret` signed this `body`, and not longer than `age_s_max` ago. `secret` is what
    the secret's file holds; a line end does not count. Raises ValueError for one that no broker has: with an empty one
    anybody could sign.

    The signature is `sha256=` and the hex HMAC-SHA256 of the timestamp (Unix seconds), a full stop and the body. Names
    of headers are compared without case.
    """
    key = secret.rstrip(b"\r\n")
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret of {len(key)} bytes; webhooks are signed with {SECRET_BYTES_MIN} or more")
    found = {name.lower(): value for name, value in headers.items()}
    timestamp = found.get(TIMESTAMP_HEADER.lower(), "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return False
    if abs((time.time() if now_s is None else now_s) - int(timestamp)) > age_s_max:
        return False
    wanted = "sha256=" + hmac.digest(key, timestamp.encode() + b"." + body, "sha256").hex()
    given = found.get(SIGNATURE_HEADER.lower(), "")
    return hmac.compare_digest(wanted.encode(), given.encode(errors="replace"))
