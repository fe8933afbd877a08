"""How numbers of things are written for people."""


def counted(number: int, what: str) -> str:
    """1 message; 1,234 messages."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
