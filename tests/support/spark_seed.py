"""What all of Spark's workers in Python import, imported, waiting: for each that asks (spark_site/sitecustomize.py) it
forks, and the child is that worker from there on. Run as a script, by tests/support/spark_workers.py."""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

REQUEST_BYTES_MAX = 262_144
STDIO = 3
IMPORTED = (
    "pandas",
    "pyarrow",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "embermq.pipeline.sources.dead_letters",
    "embermq.pipeline.sources.message_log",
    "embermq.pipeline.sources.receipts",
    "embermq.pipeline.sources.settlements",
)


class Seed:
    """Answers each that asks with how its child ended; a child whose asker has gone ends, too."""

    def __init__(self, requests: socket.socket, life: socket.socket) -> None:
        self._requests = requests
        self._life = life
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """By the descriptor that watches each."""
        self._waits = selectors.DefaultSelector()
        self._waits.register(requests, selectors.EVENT_READ)
        self._waits.register(life, selectors.EVENT_READ)

    def serve(self) -> dict[str, object] | None:
        """In a child: what it is to be. In the seed, when the tests have ended: None."""
        while True:
            key, _ = self._waits.select()[0]  # one alone: a child and who asked for it may have ended both
            if key.fileobj is self._life:
                return None
            if key.fileobj is not self._requests:
                self._let_end(key.fd)
            elif (request := self._take()) is not None:
                return request

    def _take(self) -> dict[str, object] | None:
        asker, _ = self._requests.accept()
        said, files, _, _ = socket.recv_fds(asker, REQUEST_BYTES_MAX, STDIO)
        pid = os.fork() if said else 0
        if said and not pid:
            self._let_go()
            asker.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            found: dict[str, object] = json.loads(said)
            return found
        for file in files:
            os.close(file)
        if not said:
            asker.close()
            return None
        watch = os.pidfd_open(pid)
        self._children[watch] = (pid, asker)
        self._waits.register(watch, selectors.EVENT_READ)
        self._waits.register(asker, selectors.EVENT_READ)
        return None

    def _let_end(self, found: int) -> None:
        """A child has ended, or who asked for it."""
        watch = next(one for one, (_, asker) in self._children.items() if found in (one, asker.fileno()))
        pid, asker = self._children.pop(watch)
        self._waits.unregister(watch)
        self._waits.unregister(asker)
        if found != watch:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(watch)
        with asker, suppress(OSError):
            asker.send(b"%d" % max(code, 1 if code else 0))

    def _let_go(self) -> None:
        """Nothing of the seed is open in its children."""
        self._waits.close()
        self._requests.close()
        self._life.close()
        for watch, (_, asker) in self._children.items():
            os.close(watch)
            asker.close()


def become(request: dict[str, object]) -> NoReturn:
    """The process that was asked for, until it ends."""
    module, words, path = request["module"], request["words"], request["path"]
    environment, directory = request["environment"], request["directory"]
    assert isinstance(module, str) and isinstance(words, list) and isinstance(path, list)
    assert isinstance(environment, dict) and isinstance(directory, str)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    random.seed()
    sys.path[:] = path
    sys.argv = [module, *words]
    warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # its reader has left
            stream.flush()
    os._exit(code & 255)


def main() -> None:
    for module in IMPORTED:
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in what is forked"
    # What all children have in common is looked through by none of them: to look is to have a copy of it.
    gc.collect()
    gc.freeze()
    request = Seed(*(socket.socket(fileno=int(word)) for word in sys.argv[1:])).serve()
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
