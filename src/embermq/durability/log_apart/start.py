"""After a start: what the store beside the log knows, set behind the records that the log has."""

from msgspec.structs import replace

from embermq.ports.sessions import StoredState


def behind_records(stored: StoredState, log_end: int) -> StoredState:
    """`stored` with the end of the log itself. Its sessions are complete for records below the end that `stored` had:
    what later ones say is taken from them (`durability.split.completion.complete`), since the rest of their tick may
    never have been stored."""
    sessions = [replace(entry, receiving_upto=stored.log_end) for entry in stored.sessions]
    return replace(stored, sessions=sessions, log_end=max(log_end, stored.log_end))
