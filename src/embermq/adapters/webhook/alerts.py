"""The thread that sends alerts: a lane for each address, so that a dead one holds up nobody else."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import ssl
import threading
import time
from collections import deque
from pathlib import Path
from secrets import token_hex

from msgspec import json

from embermq.adapters.webhook.posting import AddressGuard, AddressRefused, Never, NotNow, post
from embermq.adapters.webhook.settings import WebhookSettings
from embermq.ports.dead_letter_alerts import AlertStatistics, DeadLetterAlert, DeadLetterAlerts
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


LOG = logging.getLogger("embermq.webhook")
SECRET_NAME = "webhook.secret"
COMPLAIN_S = 5.0
"""Between two lines of the log about alerts that do not arrive."""
CLOSE_S = 2.0
TIMEOUT_S = 5.0
"""For one request, from the look-up of the name to the status of the answer."""
ATTEMPTS_MAX = 5
"""Requests for one alert, over 15 s; then it is given up: its letter can be listed all the same."""
BACKOFF_S = 1.0
"""Pause before the second attempt; each further one is twice as long."""
WAITING_MAX = 1_000
"""Alerts that wait for one address; more are dropped and counted."""
REQUESTS_MAX = 8
"""Requests at a time, over all addresses; one address gets one at a time."""
LANES_MAX = 1_000
"""Addresses that have alerts waiting at a time."""


class _Lane:
    """Alerts for one address. The broker's thread counts `told`, the sending one `done`: what waits is between them."""

    __slots__ = ("done", "task", "told", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[DeadLetterAlert] = deque()
        self.told = 0
        self.done = 0
        self.task: asyncio.Task[None] | None = None


class WebhookAlerts(DeadLetterAlerts):
    """See the port. Nothing runs before the first alert."""

    def __init__(self, settings: WebhookSettings, data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._guard = AddressGuard(settings.allowed_networks)
        self._lanes: dict[str, _Lane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._slots: asyncio.Semaphore | None = None
        self._tls: ssl.SSLContext | None = None
        self._secret = b""
        self._closed = False
        self._sent = self._failed = self._refused = 0
        self._dropped_before = self._dropped_after = 0
        """Before they reached a lane, by the broker's thread; and after, by the sending one."""
        self._complained_s = float("-inf")

    def tell(self, alert: DeadLetterAlert) -> None:
        lane = None if self._closed else self._lane(alert.url)
        if lane is None or lane.told - lane.done >= WAITING_MAX:
            self._dropped_before += 1
            return
        lane.told += 1
        lane.waiting.append(alert)
        self._started().call_soon_threadsafe(self._run, alert.url, lane)

    def statistics(self) -> AlertStatistics:
        return AlertStatistics(
            sent=self._sent,
            failed=self._failed,
            refused=self._refused,
            dropped=self._dropped_before + self._dropped_after,
            waiting=sum(lane.told - lane.done for lane in tuple(self._lanes.values())),
        )

    def close(self) -> None:
        self._closed = True
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
            self._thread.join(2 * CLOSE_S)

    # The broker's thread.

    def _lane(self, url: str) -> _Lane | None:
        lane = self._lanes.get(url)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                for idle in [each for each, lane in self._lanes.items() if lane.told == lane.done]:
                    del self._lanes[idle]
                if len(self._lanes) >= LANES_MAX:
                    return None
            lane = self._lanes[url] = _Lane()
        return lane

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, name="webhook", daemon=True)
            self._thread.start()
        return self._loop

    # The sending thread.

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _wind_up(self) -> None:
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for lane in self._lanes.values():
            self._dropped_after += lane.told - lane.done
            lane.done = lane.told
        asyncio.get_running_loop().stop()

    def _run(self, url: str, lane: _Lane) -> None:
        if lane.task is None or lane.task.done():
            lane.task = asyncio.ensure_future(self._empty(url, lane))

    async def _empty(self, url: str, lane: _Lane) -> None:
        """Send what waits, in its order, until nothing does."""
        while lane.waiting:
            alert = lane.waiting.popleft()
            try:
                await self._deliver(url, alert)
            except (Never, NotNow) as error:
                self._failed += 1
                self._complain(url, str(error))
            except AddressRefused as error:
                self._refused += 1
                self._complain(url, str(error))
            except SecretUnusable as error:
                self._failed += 1
                self._complain(url, str(error))
            except Exception:  # a fault of ours must not close the lane
                self._failed += 1
                LOG.exception("a dead-letter alert for %s could not be sent", place_of(url))
            lane.done += 1
        lane.task = None

    async def _deliver(self, url: str, alert: DeadLetterAlert) -> None:
        """Raises what the last attempt raised."""
        body = body_of(alert)
        pause_s = BACKOFF_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._attempt(url, body, f"{alert.letter.message_id}.{alert.letter.moved_ms}")
            except NotNow:
                if attempt == ATTEMPTS_MAX:
                    raise
            else:
                self._sent += 1
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _attempt(self, url: str, body: bytes, delivery: str) -> None:
        assert self._slots is not None
        async with self._slots:
            timestamp_s = int(time.time())
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "EmberMQ",
                DELIVERY_HEADER: delivery,
                TIMESTAMP_HEADER: str(timestamp_s),
                SIGNATURE_HEADER: signature(self._secret_now(), timestamp_s, body),
            }
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await post(
                        url, body, headers, guard=self._guard, tls=self._context(), timeout_s=TIMEOUT_S
                    )
            except TimeoutError:
                raise NotNow(f"no answer in {TIMEOUT_S:g} s") from None

    def _secret_now(self) -> bytes:
        if not self._secret:
            named = self._settings.secret_file
            path = Path(named) if named else self._data_dir / SECRET_NAME
            self._secret = read_secret(path, make=not named)
        return self._secret

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._settings.ca_file or None)
            except OSError as error:
                raise Never(f"cannot use webhook.ca_file: {error.strerror}") from error
        return self._tls

    def _complain(self, url: str, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            LOG.warning("a dead-letter alert did not reach %s: %s", place_of(url), text)


def place_of(url: str) -> str:
    """Scheme, host and port: with many services the path is the secret, as a query may be."""
    return "/".join(url.split("/", 3)[:3]).partition("?")[0][:200]
