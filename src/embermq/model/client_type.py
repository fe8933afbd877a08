"""The two kinds of clients."""

from enum import IntEnum


class ClientType(IntEnum):
    """DEVICE: very many, few messages each, wanted at once. APPLICATION: few, each takes a flood."""

    DEVICE = 0
    APPLICATION = 1
