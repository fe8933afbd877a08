"""A way to a server on which what was sent can be stuck, and come out when nobody expects it any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

READ_BYTES = 65_536


class HeldPath:
    """Forwards connections to a port. While `holding`, bytes towards the server are kept, also those of clients that
    have gone since; `release` lets them on. New connections made meanwhile pass."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._ways: list[_Way] = []

    async def __aenter__(self) -> HeldPath:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.close()
        await asyncio.gather(*(way.ended for way in self._ways), return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def hold(self) -> None:
        """Of the connections that are there now."""
        for way in self._ways:
            way.holding = True

    @property
    def held_bytes(self) -> int:
        return sum(len(way.held) for way in self._ways)

    async def release(self) -> None:
        """What was held goes on, if the server still takes it."""
        for way in self._ways:
            if way.holding:
                await way.release()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._to)
        self._ways.append(_Way(reader, writer, *there))


class _Way:
    def __init__(
        self,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self.holding = False
        self.held = b""
        self._to_client = to_client
        self._to_server = to_server
        self.ended = asyncio.gather(self._there(from_client), self._back(from_server), return_exceptions=True)

    async def release(self) -> None:
        self.holding = False
        with suppress(OSError):
            self._to_server.write(self.held)
            await self._to_server.drain()

    def close(self) -> None:
        self.ended.cancel()
        self._to_client.close()
        self._to_server.close()

    async def _there(self, from_client: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await from_client.read(READ_BYTES):
                if self.holding:
                    self.held += data
                else:
                    self._to_server.write(data)

    async def _back(self, from_server: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await from_server.read(READ_BYTES):
                self._to_client.write(data)
