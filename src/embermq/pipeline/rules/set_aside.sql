-- Messages that a rule could not use, and rows that the broker has not taken, newest first kept; why.
-- partition: of the log, in which the message is. number: its offset * 65,536 + which of its rows.
-- what: failed (the message), refused (a row).
CREATE TABLE IF NOT EXISTS messages_set_aside (
    rule      TEXT    NOT NULL,
    what      TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    number    INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    at_ms     INTEGER NOT NULL,
    PRIMARY KEY (rule, what, partition, number)
) WITHOUT ROWID;
