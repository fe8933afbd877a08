"""Rules: SQL that operators write, over the messages of the log, whose rows become messages."""
