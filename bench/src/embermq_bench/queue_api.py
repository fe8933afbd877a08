"""What a run on a queue asks of the broker's HTTP API: make the queue, and delete it when all is over."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection, HTTPException
from urllib.parse import quote

from embermq_bench.errors import ConnectionLostError, RefusedError

ANSWER_S = 20.0
AGAIN_S = 0.05
NOT_FOUND = 404
NOT_NOW = 409
"""Consumers whose connections have just ended may still count."""


class QueueApi:
    """Of one broker. `token` is what the API wants to see, where it has any."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._host = host
        self._port = port
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    async def make(self, queue: str, settings: bytes) -> None:
        """Make or configure it. Raises RefusedError, or ConnectionLostError when nobody is there."""
        status, said = await asyncio.to_thread(self._ask, "PUT", queue, settings)
        if not 200 <= status < 300:
            raise RefusedError(f"{self._told('PUT', queue)}: status {status}: {said}")

    async def delete(self, queue: str) -> None:
        """With what it holds; one that is not there is no error. Raises as `make`."""
        until_s = asyncio.get_running_loop().time() + ANSWER_S
        while True:
            status, said = await asyncio.to_thread(self._ask, "DELETE", queue, None)
            if 200 <= status < 300 or status == NOT_FOUND:
                return
            if status != NOT_NOW or asyncio.get_running_loop().time() > until_s:
                raise RefusedError(f"{self._told('DELETE', queue)}: status {status}: {said}")
            await asyncio.sleep(AGAIN_S)

    def _ask(self, method: str, queue: str, body: bytes | None) -> tuple[int, str]:
        connection = HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            connection.request(method, _path(queue), body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(2_000).decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise ConnectionLostError(f"{self._told(method, queue)}: {error}") from error
        finally:
            connection.close()

    def _told(self, method: str, queue: str) -> str:
        return f"{method} {_path(queue)} at {self._host}:{self._port}"


def _path(queue: str) -> str:
    return f"/api/v1/queues/{quote(queue, safe='')}"
