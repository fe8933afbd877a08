"""Threads that call the JVM: py4j opens a connection for each, and leaves it open when the thread ends."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyspark import SparkContext

P = ParamSpec("P")
R = TypeVar("R")


def closing_connection(work: Callable[P, R]) -> Callable[P, R]:
    """The same work; the connection of the thread that does it is closed at its end, not by the garbage collector."""

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        finally:
            close_connection()

    return done


def close_connection() -> None:
    """Of this thread, which may open another one with its next call."""
    gateway: Any = SparkContext._gateway
    connection = None if gateway is None else gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()
