"""The control socket: `control.sock` in the data directory, on which the operator's commands reach a running broker."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from embermq.admin.settings import HttpLimits
from embermq.app.errors import IsThere, OptionError, StartError, UserError

if TYPE_CHECKING:
    import httpx

    from embermq.admin.http import HttpServer

FILE_NAME = "control.sock"
ANSWER_S = 60.0
NOT_MEANT = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""How a broker answers to what cannot be, whatever it holds."""


class NoAnswer(UserError):
    """The broker is not there, or is not able to answer now: what was asked for may be done all the same."""


class ControlSide:
    """The broker's end. Only the owner of the data directory can open the socket."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server: HttpServer | None = None

    async def open(self, desks: Mapping[str, object]) -> None:
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
        self._server = HttpServer(create_control_app(desks), HttpLimits())
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
    """The command's end; a context manager. Raises NoAnswer when no broker runs on the data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._client: httpx.Client
        self._opened: AbstractContextManager[str]

    def __enter__(self) -> ControlClient:
        import httpx

        if not (self._data_dir / FILE_NAME).exists():
            raise NoAnswer(f"no broker is running on {self._data_dir}; another one is named with --data-dir")
        self._opened = _short_path(self._data_dir)
        path = self._opened.__enter__()
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=path),
            base_url=httpx.URL(scheme="http", host="broker"),
            timeout=ANSWER_S,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._opened.__exit__(None, None, None)

    def ask(self, method: str, path: str, **parameters: str | list[str]) -> bytes:
        """The body of the answer; raises UserError with the broker's own words for a refusal,
        OptionError for what cannot be."""
        return self._ask(method, path, parameters, None)

    def put(self, path: str, content: bytes, *, only_new: bool = False) -> bytes:
        """The same with a body. `only_new`: raises IsThere, and changes nothing, when there is something already."""
        return self._ask("PUT", path, {}, content, {"if-none-match": "*"} if only_new else {})

    def post(self, path: str, content: bytes) -> bytes:
        """The same; NoAnswer when there is none."""
        return self._ask("POST", path, {}, content)

    def _ask(
        self,
        method: str,
        path: str,
        parameters: dict[str, str | list[str]],
        content: bytes | None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        import httpx

        try:
            answer = self._client.request(method, path, params=parameters, content=content, headers=headers)
        except UnicodeEncodeError as error:  # a byte that was typed
            raise OptionError(f"{error.object[:80]!r} is no text in UTF-8") from None
        except httpx.ConnectError as error:
            raise NoAnswer(f"no broker answers on {self._data_dir / FILE_NAME}: {error}") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"the broker on {self._data_dir} did not answer: {error}") from error
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise NoAnswer(_detail(answer.content))
        if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise IsThere(_detail(answer.content))
        if answer.status_code in NOT_MEANT:
            raise OptionError(_detail(answer.content))
        if answer.is_error:
            raise UserError(_detail(answer.content))
        return answer.content


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "the broker refused without a reason"
