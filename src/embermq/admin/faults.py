"""What goes wrong inside while a request is answered."""

import asyncio
import logging

_log = logging.getLogger(__name__)


def tell_of_fault(doing: str, error: Exception) -> None:
    """Log it. A MemoryError goes to the event loop as well, whose handler ends the process: the servers of HTTP and
    gRPC would go on after it."""
    if isinstance(error, MemoryError):
        context = {"message": f"{doing} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
    _log.error("%s failed", doing, exc_info=error)
