"""Names of the sessions that clients have at other slots than their own, where groups are that they are members of.

Such a session belongs to the client's own session, which it names by its generation: no session that the client has
later takes it for its own.
"""

from __future__ import annotations

MEMBER_PREFIX = "$member/"


def member_id(client_id: str, generation: int) -> str:
    """What the session is called at other slots."""
    return f"{MEMBER_PREFIX}{generation}/{client_id}"


def is_member_id(client_id: str) -> bool:
    """Whether this id is for a session of another slot's client, and for no client, who may have made it up."""
    return client_id.startswith(MEMBER_PREFIX)


def member_of(session_id: str) -> tuple[str, int]:
    """The client and the generation of its own session. Raises ValueError for what is no such name."""
    prefix, generation, client_id = session_id.split("/", 2)
    if f"{prefix}/" != MEMBER_PREFIX:
        raise ValueError(f"{session_id!r} names no session of another slot's client")
    return client_id, int(generation)


def client_of(session_id: str) -> str:
    """The client whose session it is: as rules know it. An id that names no other client is its own client's."""
    if not is_member_id(session_id):
        return session_id
    try:
        return member_of(session_id)[0]
    except ValueError:
        return session_id
