"""Which node of a cluster has which hash slot."""

from __future__ import annotations

from binascii import crc_hqx

from embermq.ports.store_node import Node

SLOTS = 16_384
SPREAD = 64
"""Keys in place of one that each master should have."""


def slot_of(key: str) -> int:
    """The hash slot of a key: of what stands in its first braces, if there is something in them."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(errors="surrogateescape"), 0) % SLOTS


def spread_key(name: str) -> tuple[str, ...]:
    """`name:{tag}`, evenly over the slots."""
    keys: dict[int, str] = {}
    tag = 0
    while len(keys) < SPREAD:
        key = f"{name}:{{{tag}}}"
        keys.setdefault(slot_of(key) * SPREAD // SLOTS, key)
        tag += 1
    return tuple(keys[part] for part in range(SPREAD))


def read_slots(answer: object, asked: Node) -> dict[int, Node]:
    """CLUSTER SLOTS as slot to master. A node that does not know its own name is reached as `asked`. Raises ValueError
    when the answer is not one."""
    masters: dict[int, Node] = {}
    if not isinstance(answer, list):
        raise ValueError("CLUSTER SLOTS is no list")
    for entry in answer:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                name = host.decode() if isinstance(host, bytes) else ""
                if name != "?":
                    masters |= dict.fromkeys(range(first, last + 1), Node(name or asked.host, port))
            case _:
                raise ValueError("CLUSTER SLOTS has an entry of another shape")
    return masters


def named_in(text: str, asked: Node) -> Node | None:
    """The node in `MOVED 866 127.0.0.1:7001` or `ASK ...`; None when it cannot be read."""
    host, _, port = text.rpartition(" ")[2].rpartition(":")
    return Node(host or asked.host, int(port)) if port.isascii() and port.isdigit() else None
