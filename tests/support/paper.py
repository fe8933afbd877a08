"""A transport without a network, for clients that are fed by hand."""


class Paper:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written
