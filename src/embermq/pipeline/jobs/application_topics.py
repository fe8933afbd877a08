"""Who knows which application logs there have to be: asked when a record is for one that is not there."""

import http.client
import os
import socket
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.places import Places

ANSWER_S = 20.0
_PATH = "/application-logs/restore"


class ApplicationTopics(Protocol):
    """Answered by whoever knows the sessions. May raise KafkaLogError; then it is asked again."""

    def restore(self, topic: str) -> int | None:
        """Make the log again when a session still wants it, and return None.

        Otherwise the newest session generation there has been: what is stamped for that log and a generation up to
        it is rejected, since nobody will ever read it; a later one is of a new session, whose log is made for it.
        """


class _Restored(Struct, frozen=True):
    generation: int | None


class BrokerSessions:
    """Asks the broker of this data directory, over its control socket."""

    def __init__(self, places: Places, timeout_s: float = ANSWER_S) -> None:
        self._socket = places.control
        self._timeout_s = timeout_s

    def restore(self, topic: str) -> int | None:
        connection = _SocketConnection(self._socket, self._timeout_s)
        try:
            connection.request(
                "POST", _PATH, msgspec.json.encode({"topic": topic}), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise KafkaLogError(f"{self._socket}: the broker was asked for {topic}: {error}") from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise KafkaLogError(
                f"{self._socket}: the broker does not restore {topic}: {answer.status} "
                f"{body.decode(errors='replace')}"
            )
        try:
            return msgspec.json.decode(body, type=_Restored).generation
        except msgspec.DecodeError as error:
            raise KafkaLogError(f"{self._socket}: the broker's answer about {topic}: {error}") from error


class _SocketConnection(http.client.HTTPConnection):
    """To a socket in the file system, however long the name of its directory is."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("broker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)
