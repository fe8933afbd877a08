"""What a webhook is told about a dead letter that has arrived."""

from msgspec import Struct

from embermq.model.queue_rows import DeadLetter


class DeadLetterAlert(Struct, frozen=True):
    """`url` is where it goes, `queue` the queue of dead letters that `letter` is in now; the body of the message is not
    told."""

    url: str
    queue: str
    letter: DeadLetter
