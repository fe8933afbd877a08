"""What a request says, and the signature by which its receiver knows that it is ours."""

import hmac
import os
from pathlib import Path
from secrets import token_hex

from msgspec import json

from embermq.model.dead_letter_alert import DeadLetterAlert
from embermq.ports.errors import StoreError

SECRET_BYTES_MIN = 16
TIMESTAMP_HEADER = "EmberMQ-Timestamp"
SIGNATURE_HEADER = "EmberMQ-Signature"
DELIVERY_HEADER = "EmberMQ-Delivery"


class SecretUnusable(StoreError):
    """The file of the secret cannot be read, cannot be made, or holds too little."""


def read_secret(path: Path, *, make: bool) -> bytes:
    """The secret in that file; with `make` a file that is missing gets a new one, for its owner alone. Raises
    SecretUnusable."""
    try:
        if make:
            _make(path)
        secret = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise SecretUnusable(f"cannot use {path} as the secret of webhooks: {error.strerror}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise SecretUnusable(
            f"{path} holds a secret of {len(secret)} bytes; webhooks need {SECRET_BYTES_MIN} or more"
        )
    return secret


def body_of(alert: DeadLetterAlert) -> bytes:
    """JSON; times are Unix milliseconds, as on a dead letter itself."""
    letter = alert.letter
    return json.encode(
        {
            "event": "dead-letter",
            "queue": letter.queue,
            "dead_letter_queue": alert.queue,
            "message_id": letter.message_id,
            "group": letter.group,
            "reason": letter.reason,
            "attempts": letter.attempts.deliveries,
            "first_delivered_at": letter.attempts.first_delivered_ms or None,
            "moved_at": letter.moved_ms,
            "last_error": letter.attempts.last_error,
        }
    )


def signature(secret: bytes, timestamp_s: int, body: bytes) -> str:
    """HMAC-SHA256 of the time, a full stop and the body: neither can be changed, and an old request is known as old."""
    return "sha256=" + hmac.digest(secret, b"%d." % timestamp_s + body, "sha256").hex()


def _make(path: Path) -> None:
    """Whole or not at all. What a broker that was killed in between has left is written over: in a container the
    next one has the same process id."""
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
