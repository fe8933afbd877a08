"""The step `http`: a service of the operator's is asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import ssl
import time
from collections import OrderedDict
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from secrets import token_bytes

import httpx
from msgspec import Struct

from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.settings import HttpHookSettings
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode

LOG = logging.getLogger("embermq.authentication")
ANSWER_BYTES_MAX = 64 * 1024
REQUESTS_MAX = 16
"""Requests at a time, each on a connection of its own: with answers in 10 ms they are 1,600 a second."""
WAITING_MAX = 1_000
"""Clients that wait for their turn to be asked about; one more is refused with 0x89 (server busy)."""
CACHED_MAX = 10_000
COMPLAIN_S = 5.0
"""Between two lines of the log about a service that does not answer as it should."""
EXPIRES_S_MAX = 253_402_300_799
"""The end of the year 9999."""
CLIENT_TYPES = {"device": ClientType.DEVICE, "application": ClientType.APPLICATION}
REFUSED = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the HTTP hook refuses it")
EXPIRED = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the HTTP hook's answer has expired already")
UNAVAILABLE = Deny(ReasonCode.SERVER_UNAVAILABLE, "the HTTP hook gives no answer")
BUSY = Deny(ReasonCode.SERVER_BUSY, "too many clients wait for the HTTP hook")


class HookError(Exception):
    """The service's fault. The text has nothing of what was sent or answered."""


class _Allowed(Struct, frozen=True):
    admit: Admit
    until_s: float


class HttpHookStep(Step):
    """Asks about every client that comes to it. Raises ChainError when the certificates cannot be used."""

    name = "http"

    def __init__(self, settings: HttpHookSettings) -> None:
        try:
            httpx.URL(settings.url)
        except httpx.InvalidURL:
            raise ChainError("http_hook.url", "is not an address with https or http") from None
        if not settings.url.startswith("https:") and not _is_here(httpx.URL(settings.url).host):
            LOG.warning("http_hook.url is not https: passwords cross the network in plain text")
        for library in ("httpx", "httpcore"):  # they would tell of each request
            logging.getLogger(library).setLevel(logging.WARNING)
        self._settings = settings
        self._client = httpx.AsyncClient(
            verify=_context(settings),
            follow_redirects=False,
            trust_env=False,
            cookies=CookieJar(
                DefaultCookiePolicy(allowed_domains=())
            ),  # what it sets for one client is not the next's
            timeout=None,
            # A connection for each question: bytes behind one answer must never be read as the answer to the next.
            limits=httpx.Limits(max_connections=REQUESTS_MAX, max_keepalive_connections=0),
        )
        self._room = REQUESTS_MAX + WAITING_MAX
        self._asking = 0
        self._salt = token_bytes(32)
        self._allowed: OrderedDict[bytes, _Allowed] = OrderedDict()
        self._complained_s = float("-inf")
        self._silent = 0

    def look(self, applicant: Applicant) -> Look:
        return CHECK

    async def check(self, applicant: Applicant) -> StepAnswer:
        question = _question(applicant)
        place = hashlib.blake2b(question, key=self._salt, digest_size=32).digest()
        known = self._known(place)
        if known is not None:
            return known
        if self._asking >= self._room:
            return BUSY
        self._asking += 1
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                answer = _answer(await self._ask(question), applicant)
        except TimeoutError:
            return self._complain(f"no answer within {self._settings.timeout_ms} ms")
        except HookError as error:
            return self._complain(str(error))
        except httpx.HTTPError as error:
            return self._complain(type(error).__name__)
        finally:
            self._asking -= 1
        if isinstance(answer, Admit):
            if answer.expires_ms and answer.expires_ms <= _now_ms():
                return EXPIRED
            self._keep(place, answer)
        return answer

    async def close(self) -> None:
        await self._client.aclose()

    def _known(self, place: bytes) -> Admit | None:
        found = self._allowed.get(place)
        if found is None:
            return None
        ended = found.admit.expires_ms and found.admit.expires_ms <= _now_ms()
        if time.monotonic() >= found.until_s or ended:
            del self._allowed[place]
            return None
        return found.admit

    def _keep(self, place: bytes, admit: Admit) -> None:
        if not self._settings.cache_s:
            return
        self._allowed[place] = _Allowed(admit, time.monotonic() + self._settings.cache_s)
        if len(self._allowed) > CACHED_MAX:
            self._allowed.popitem(last=False)

    async def _ask(self, question: bytes) -> tuple[int, bytes]:
        """Status and body."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        async with self._client.stream(
            "POST", self._settings.url, content=question, headers=headers
        ) as response:
            body = b""
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise HookError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            return response.status_code, body

    def _complain(self, text: str) -> Deny:
        self._silent += 1
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAIN_S:
            LOG.warning(
                "the HTTP hook gives no usable answer: %s; clients refused for it: %d",
                text,
                self._silent,
            )
            self._complained_s = now_s
            self._silent = 0
        return UNAVAILABLE


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _context(settings: HttpHookSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except ssl.SSLError as error:
        text = f"{settings.ca_file} cannot be used ({error.reason or 'no certificate in it'})"
        raise ChainError("http_hook.ca_file", text) from None
    except OSError as error:
        raise ChainError("http_hook.ca_file", f"cannot read {settings.ca_file}: {error.strerror}") from None


def _question(applicant: Applicant) -> bytes:
    """What is sent: a password that is not UTF-8 goes as base64 under a name of its own."""
    asked: dict[str, str | None] = {
        "client_id": applicant.client_id,
        "username": applicant.username,
        "password": None,
        "address": applicant.visitor.address,
        "certificate": applicant.visitor.certificate_name,
    }
    if applicant.password is not None:
        try:
            asked["password"] = applicant.password.decode()
        except UnicodeDecodeError:
            asked["password_base64"] = base64.b64encode(applicant.password).decode()
    return json.dumps(asked).encode()


def _answer(answer: tuple[int, bytes], applicant: Applicant) -> StepAnswer:
    """204 and `{"result": "allow"}` let the client in, `deny` and `ignore` say no and *not mine*; nothing else is an
    answer. Raises HookError."""
    status, body = answer
    if status == 204:
        return Admit(_username(applicant))
    if status != 200:
        raise HookError(f"status {status}")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise HookError("an answer that is not JSON") from None
    if not isinstance(said, dict):
        raise HookError("an answer that is not a JSON object")
    result = said.get("result")
    if result == "deny":
        return REFUSED
    if result == "ignore":
        return NOT_MINE
    if result != "allow":
        raise HookError('a "result" that is not allow, deny or ignore')
    client_type = said.get("client_type", "device")
    if not isinstance(client_type, str) or client_type not in CLIENT_TYPES:
        raise HookError('a "client_type" that is neither device nor application')
    return Admit(_username(applicant), CLIENT_TYPES[client_type], expires_ms=_expires_ms(said))


def _username(applicant: Applicant) -> str:
    return applicant.username or applicant.visitor.certificate_name or ""


def _expires_ms(said: dict[str, object]) -> int:
    expires_at = said.get("expires_at")
    if expires_at is None:
        return 0
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        raise HookError('an "expires_at" that is not a number')
    if not 0 < expires_at <= EXPIRES_S_MAX:
        raise HookError('an "expires_at" that is not a Unix time in seconds up to the year 9999')
    return max(1, int(expires_at * 1000))
