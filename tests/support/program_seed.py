"""`embermq` with its imports done, waiting: for each request on the socket that it is given it forks, and the child is
the program from there on. Run as a script, by tests/support/forked_program.py."""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NoReturn

REQUEST_BYTES_MAX = 131_072
STDIO = 3


def imported(is_broker: bool) -> tuple[ModuleType, ...]:
    """What each broker of the tests needs, and no more: it must not have what its settings do not ask for. Or what
    most commands need."""
    if not is_broker:
        import httpx

        import embermq.app.directory_client as directory
        import embermq.cli.main as program

        commands = ("users", "tokens", "sessions", "queues", "audit", "bans")
        return program, httpx, directory, *(import_module(program.COMMANDS[name]) for name in commands)
    import uvicorn.protocols.http.h11_impl as http
    from starlette.routing import compile_path

    import embermq.admin.http as api
    import embermq.app.run as app
    import embermq.cli.main as entry
    import embermq.cli.run as command
    from embermq.admin.operations import OPERATIONS

    for path in (path for one in OPERATIONS for path in one.paths):
        compile_path(path)  # Python keeps what it has compiled

    return entry, command, app, api, http


class Seed:
    """Answers each request with the process id of its child, and later with how that child ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._waits = selectors.DefaultSelector()
        self._waits.register(requests, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """In a child: the words that were typed. In the seed itself, when nobody can ask any more: None."""
        while True:
            for key, _ in self._waits.select():
                if key.fileobj is not self._requests:
                    self._tell_end(key.fd)
                    continue
                request, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES_MAX, 1 + STDIO)
                if not request:
                    return None
                if (words := self._fork(request, files)) is not None:
                    return words

    def _fork(self, request: bytes, files: list[int]) -> list[str] | None:
        answers = socket.socket(fileno=files[0])
        pid = os.fork()
        if not pid:
            answers.close()
            self._let_go()
            return become(json.loads(request), files[1:])
        for file in files[1:]:
            os.close(file)
        watch = os.pidfd_open(pid)
        self._children[watch] = (pid, answers)
        self._waits.register(watch, selectors.EVENT_READ)
        with suppress(OSError):
            answers.send(b"%d" % pid)
        return None

    def _tell_end(self, watch: int) -> None:
        pid, answers = self._children.pop(watch)
        self._waits.unregister(watch)
        os.close(watch)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with answers, suppress(OSError):
            answers.send(b"%d" % code)

    def _let_go(self) -> None:
        """Nothing of the seed is open in its children."""
        self._waits.close()
        self._requests.close()
        for watch, (_, answers) in self._children.items():
            os.close(watch)
            answers.close()


def become(request: dict[str, object], stdio: list[int]) -> list[str]:
    """The process that was asked for: its own session, directory, environment, files and values of constants."""
    words, environment, directory = request["words"], request["environment"], request["directory"]
    assert isinstance(words, list) and isinstance(environment, dict) and isinstance(directory, str)
    os.setsid()
    os.chdir(directory)
    for number, file in enumerate(stdio):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    constants = request["constants"]
    assert isinstance(constants, dict)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        place = import_module(module)  # one of the servers profile may not be there yet
        assert hasattr(place, constant), name
        setattr(place, constant, value)
    return words


def main() -> None:
    entry, *_ = imported(is_broker=sys.argv[2] == "broker")
    # What all children have in common is looked through by none of them: to look is to have a copy of it.
    gc.collect()
    gc.freeze()
    words = Seed(socket.socket(fileno=int(sys.argv[1]))).serve()
    if words is None:
        return
    sys.argv = words
    try:
        code: int = entry.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    end(code)


def end(code: int) -> NoReturn:
    """As a program ends, but for what its modules hold: to take them apart is to have a copy of all they share."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for what is not daemonic
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # its reader has left, or there is none
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
