"""What a store may answer instead of doing what it was asked."""


class StoreError(Exception):
    """The store could not do it; nothing of the call has taken effect."""


class StoreFull(StoreError):
    """There is no room: disk, quota or a configured budget. The call may succeed later."""


class StoreUnavailable(StoreError):
    """The store did not answer, or it is used by another process."""


class TakenOver(StoreUnavailable):
    """Another broker has taken the store over: this one has to end, and to write nothing more."""
