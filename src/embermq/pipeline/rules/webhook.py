"""`to = "webhook"`: each row is the body of a POST, in order, at least once, with an id by which the receiver knows a
repeat.

The broker keeps how far it is, told after the answer. A redirect is no answer that is followed, and what may be a
secret (the path of the URL, headers) is in no error.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from embermq.pipeline.errors import RuleError
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.targets import NumberedRow, RuleDoor, RuleTarget

ID_HEADER = "EmberMQ-Id"
RULE_HEADER = "EmberMQ-Rule"
TIMEOUT_S = 10.0
"""For each step of a request: connecting, sending, a part of the answer."""
WHOLE_TIMEOUT_S = 30.0
"""For a request and all of its answer."""
NOTED_EVERY_S = 1.0
"""How often the broker is told how far it is; what was sent since is sent again by the driver after one that died."""
ANSWER_BYTES_MAX = 64 * 1024
"""An answer is read, so that the connection can be used again; one that is longer costs it."""
_LATER = frozenset({408, 425, 429})
"""Refusals that say: later. So do all from 500 on."""
_OURS = frozenset({401, 402, 403, 404, 405, 407})
"""Refusals of whatever is sent there: the URL or a header is wrong, which a person may put right."""


class WebhookTarget(RuleTarget):
    """See the module."""

    def __init__(
        self, name: str, rule: RuleSettings, door: RuleDoor, aside: SetAside, log_id: Callable[[], int]
    ) -> None:
        super().__init__(name, rule, door, aside)
        self._log_id = log_id
        self._place = rule.shown_url
        self._id_prefix = ""
        self._connection: http.client.HTTPConnection | None = None
        self._headers: dict[str, str] = {}

    def open(self) -> None:
        self._close()
        self._headers = headers_of(self._rule)
        self._id_prefix = f"{self._name}:{self._log_id()}"
        super().open()

    def put(self, partition: int, rows: Sequence[NumberedRow]) -> int:
        noted_s = time.monotonic()
        sent = noted = done = 0
        try:
            for number, row in rows:
                place = f"{partition}:{number // ROWS_MAX}:{number % ROWS_MAX}"
                refusal = self._post(f"{self._id_prefix}:{place}", bytes(row["payload"]))
                if refusal:
                    self._aside.add("refused", partition, number, refusal)
                else:
                    sent += 1
                done = number + 1
                if time.monotonic() - noted_s >= NOTED_EVERY_S:
                    self.move(partition, done)
                    noted, noted_s = done, time.monotonic()
        finally:
            if done > noted:
                self.move(partition, done)
        return sent

    def close(self) -> None:
        self._close()

    def _post(self, message_id: str, body: bytes) -> str:
        """Why it will never be taken, "" when it was. Raises RuleError when it may be taken later."""
        headers = self._headers | {ID_HEADER: message_id}
        status = self._status(body, headers)
        if 200 <= status < 300:
            return ""
        if status in _LATER or status in _OURS or status >= 500:
            raise RuleError(f"{self._place} answers with status {status}")
        if 300 <= status < 400:
            raise RuleError(f"{self._place} answers with status {status}: redirects are not followed")
        return f"status {status}"

    def _status(self, body: bytes, headers: dict[str, str]) -> int:
        """A connection that the other side has closed while nothing was said is opened once more."""
        was_open = self._connection is not None
        try:
            return self._asked(body, headers)
        except (http.client.HTTPException, OSError) as error:
            self._close()
            if was_open and isinstance(error, http.client.RemoteDisconnected | BrokenPipeError):
                return self._status(body, headers)
            raise RuleError(f"{self._place} does not answer: {_reason(error)}") from None

    def _asked(self, body: bytes, headers: dict[str, str]) -> int:
        if self._connection is None:
            self._connection = connection_to(self._rule)
        parts = urlsplit(self._rule.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        watch = threading.Timer(WHOLE_TIMEOUT_S, _cut, [self._connection])
        watch.daemon = True
        watch.start()
        try:
            self._connection.request("POST", target, body, headers)
            answer = self._connection.getresponse()
            status = answer.status
            if len(answer.read(ANSWER_BYTES_MAX + 1)) > ANSWER_BYTES_MAX or answer.will_close:
                self._close()
        finally:
            watch.cancel()
        return status

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def connection_to(rule: RuleSettings) -> http.client.HTTPConnection:
    """Not connected yet. Raises OSError for certificates that cannot be read."""
    parts = urlsplit(rule.url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context(cafile=rule.ca_file or None)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _cut(connection: http.client.HTTPConnection) -> None:
    """Whoever waits for it gets an error."""
    with suppress(OSError, AttributeError):  # it is closed already
        connection.sock.shutdown(socket.SHUT_RDWR)


def headers_of(rule: RuleSettings) -> dict[str, str]:
    """Those of each request; the ones in `headers_file` are read at each start. Raises RuleError, without values."""
    found = {"Content-Type": rule.content_type, "User-Agent": "EmberMQ"}
    if not rule.headers_file:
        return found
    try:
        text = Path(rule.headers_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"headers_file {rule.headers_file} cannot be read: {_reason(error)}") from None
    for number, line in _lines(text):
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not (colon and name.isascii() and value.isascii() and value.isprintable() and _is_token(name)):
            raise RuleError(f"headers_file {rule.headers_file}, line {number}: is no NAME: VALUE")
        found[name] = value
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _is_token(name: str) -> bool:
    return all(letter.isalnum() or letter in "-_.!#$%&'*+^`|~" for letter in name)


def _reason(error: Exception) -> str:
    """Without what was sent."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'no agreement'}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
