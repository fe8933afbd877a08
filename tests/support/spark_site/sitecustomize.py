"""Read by each Python that starts below a test which has asked for it (tests/support/spark_workers.py). One that is to
be a worker of Spark hands its files and arguments to a process that has the imports of all of them, and lives as long
as what is forked there; any other Python goes on as it is."""

import os
import sys

_SEED = os.environ.get("SPARK_WORKER_SEED", "")


def _hand_over() -> None:
    import json
    import socket

    request = {
        "module": sys.orig_argv[2],
        "words": sys.orig_argv[3:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": sys.path,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as seed:
        try:
            seed.connect(_SEED)
            socket.send_fds(seed, [json.dumps(request).encode()], [0, 1, 2])
        except OSError:
            return  # there is none any more: it imports for itself
        os.close(0)  # Java waits for the end of what is behind the others
        os.close(1)
        told = seed.recv(32)
        os._exit(int(told) if told else 1)


if _SEED and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    _hand_over()
