"""The control socket: `control.sock` in the data directory, on which the operator's commands reach a running broker."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from embermq.admin.settings import MISSING_SLOTS, HttpLimits
from embermq.app.errors import IsThere, OptionError, StartError, UserError

if TYPE_CHECKING:
    import httpx

    from embermq.admin.http import HttpServer
    from embermq.admin.operation import AdminOperation
    from embermq.admin.trail import Trail
    from embermq.pipeline.status import PipelineStatus

FILE_NAME = "control.sock"
ANSWER_S = 60.0
PREFIX = "/api/v1"
PARTS = re.compile(r"\{(\w+)\}")
NOT_MEANT = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""How a broker answers to what cannot be, whatever it holds."""


class NoAnswer(UserError):
    """The broker is not there, or is not able to answer now: what was asked for may be done all the same."""


class ControlSide:
    """The broker's end. Only the owner of the data directory can open the socket."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server: HttpServer | None = None

    async def open(self, desks: Mapping[str, object], trail: Trail) -> None:
        """Serve every operation from now on; what a killed broker left is replaced, since the lock says that it is
        dead.

        Raises StartError.
        """
        from embermq.admin.http import HttpServer
        from embermq.admin.http_api import create_control_app

        sock = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                (self._data_dir / FILE_NAME).unlink()
            with _short_path(self._data_dir) as path:
                sock.bind(path)
        except OSError as error:
            sock.close()
            raise StartError(f"cannot make {self._data_dir / FILE_NAME}: {error.strerror}") from error
        self._server = HttpServer(create_control_app(desks, trail), HttpLimits())
        await self._server.start([sock])

    async def stop(self) -> None:
        """Finish requests under way and take the socket away."""
        if self._server is not None:
            await self._server.stop()
            with suppress(FileNotFoundError):
                (self._data_dir / FILE_NAME).unlink()


@contextmanager
def _short_path(data_dir: Path) -> Iterator[str]:
    """The socket by a path that the kernel takes, however long the directory's is."""
    descriptor = os.open(data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{FILE_NAME}"
    finally:
        os.close(descriptor)


class ControlClient:
    """The command's end; a context manager. Asking raises NoAnswer when no broker runs on the data directory."""

    is_this_process = False
    """Whether it does itself what is asked, and no broker has to run."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._place = str(data_dir / FILE_NAME)
        self._held = ExitStack()
        self._client: httpx.Client | None = None
        self.missing: set[str] = set()
        """Slots of a cluster whose part was in no answer to a list."""

    def __enter__(self) -> ControlClient:
        return self

    def _open(self) -> httpx.Client:
        """Once it is asked: what cannot be asked is said first."""
        import httpx

        if not (self._data_dir / FILE_NAME).exists():
            raise NoAnswer(
                f"no broker is running on {self._data_dir}; name another data directory with --data-dir"
            )
        path = self._held.enter_context(_short_path(self._data_dir))
        client = httpx.Client(
            transport=httpx.HTTPTransport(uds=path),
            base_url=httpx.URL(scheme="http", host="broker"),
            timeout=ANSWER_S,
        )
        return self._held.enter_context(client)

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ask(self, operation: AdminOperation, **fields: Any) -> Any:
        """What the broker answers to these fields of a request, as JSON has it; None for nothing. Fields that are None
        are left out; one that is the whole body is given as bytes. Raises NoAnswer, IsThere, OptionError for what
        cannot be, and UserError with the broker's own words for another refusal."""
        path = _path(operation, fields)
        headers = {"if-none-match": "*"} if fields.pop("only_new", False) else {}
        content: bytes | None = fields.pop(operation.body_as, None)
        given = {
            name: value for name, value in fields.items() if f"{{{name}}}" not in path and value is not None
        }
        if operation.body is not None and not operation.body_as:
            in_body = set(operation.body.__struct_fields__)
            try:
                content = msgspec.json.encode(
                    {name: value for name, value in given.items() if name in in_body}
                )
            except UnicodeEncodeError:  # it may be a password
                raise OptionError("what was typed is no text in UTF-8, which the API takes alone") from None
            given = {name: value for name, value in given.items() if name not in in_body}
        answer = self._answer(operation.method, PREFIX + _filled(path, fields), given, content, headers)
        return msgspec.json.decode(answer) if answer else None

    def pages(self, operation: AdminOperation, **fields: Any) -> Iterator[Any]:
        """Every entry of a list, asked for page by page, so that a broker with very many is not held up."""
        while page := self.ask(operation, **fields):
            yield from page
            fields |= {name: page[-1][key] for name, key in operation.pages.items()}

    def pipeline_status(self) -> PipelineStatus:
        """What every query does. Raises as `ask` does."""
        from embermq.pipeline.status import PipelineStatus

        return msgspec.json.decode(
            self._answer("GET", PREFIX + "/pipeline", {}, None, {}), type=PipelineStatus
        )

    def _answer(
        self,
        method: str,
        path: str,
        parameters: dict[str, Any],
        content: bytes | None,
        headers: dict[str, str],
    ) -> bytes:
        import httpx

        if self._client is None:
            self._client = self._open()
        try:
            answer = self._client.request(method, path, params=parameters, content=content, headers=headers)
        except UnicodeEncodeError as error:  # a byte that was typed
            raise OptionError(f"{error.object[:80]!r} is no text in UTF-8") from None
        except httpx.InvalidURL:  # 64 KiB; everything else in it is quoted
            raise OptionError("there is more in it than one request takes: name less at a time") from None
        except httpx.ConnectError as error:
            raise NoAnswer(f"no broker answers on {self._place}: {error}") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"the broker on {self._place} did not answer: {error}") from error
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise NoAnswer(_detail(answer.content))
        if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise IsThere(_detail(answer.content))
        if answer.status_code in NOT_MEANT:
            raise OptionError(_detail(answer.content))
        if answer.is_error:
            raise UserError(_detail(answer.content))
        self.missing.update(filter(None, answer.headers.get(MISSING_SLOTS, "").split(",")))
        return answer.content


class RemoteClient(ControlClient):
    """The same by a listener of the broker's API, perhaps on another machine. `ca_file` has the authority of its
    certificate, None for those that this machine trusts."""

    def __init__(self, url: str, token: str, ca_file: Path | None) -> None:
        super().__init__(Path())
        self._place = self._url = url.rstrip("/")
        self._token = token
        self._ca_file = ca_file

    def _open(self) -> httpx.Client:
        import ssl

        import httpx

        from embermq.admin.access import is_loopback

        try:
            base = httpx.URL(self._url)
            trusted = ssl.create_default_context(cafile=self._ca_file)
        except (httpx.InvalidURL, OSError) as error:
            raise OptionError(f"{self._url}: {error}") from None
        if base.scheme not in ("http", "https") or not base.host:
            raise OptionError(f"{self._url} is no address of a listener: scheme https or http, host, port")
        if base.userinfo:
            raise OptionError("--url has a user or a password in it; a token is given with --token-file")
        if base.scheme == "http" and self._token and base.host != "localhost" and not is_loopback(base.host):
            raise OptionError(
                f"{base.host} is asked over http, where others on the way read the token: use https"
            )
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        client = httpx.Client(
            base_url=base, headers=headers, verify=trusted, timeout=ANSWER_S, trust_env=False
        )
        return self._held.enter_context(client)


def _path(operation: AdminOperation, fields: Mapping[str, Any]) -> str:
    """The one that takes most of the fields."""
    fit = [path for path in operation.paths if all(fields.get(name) for name in PARTS.findall(path))]
    if not fit:
        raise OptionError("a name, or an id, is empty")
    return max(fit, key=len)


def _filled(path: str, fields: Mapping[str, Any]) -> str:
    """Each name is one part of it, whatever the name holds: `.` and `..` name queues here and lead nowhere, and what
    was typed may be no UTF-8."""
    return PARTS.sub(
        lambda found: quote(fields[found[1]], safe="", errors="surrogateescape").replace(".", "%2E"), path
    )


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "the broker refused without a reason"
