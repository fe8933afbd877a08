-- Messages that a rule could not use, and rows that the broker has not taken, newest first kept; why.
-- number: offset of the message * 65,536 + which of its rows. what: failed (the message), refused (a row).
CREATE TABLE IF NOT EXISTS set_aside (
    rule   TEXT    NOT NULL,
    what   TEXT    NOT NULL,
    number INTEGER NOT NULL,
    reason TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL,
    PRIMARY KEY (rule, what, number)
) WITHOUT ROWID;
