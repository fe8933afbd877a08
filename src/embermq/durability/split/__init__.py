"""Session data in a store of its own, behind the message log: written after it, read back with its help.

What is acknowledged to a publisher is in the log. What is promised to a session, its subscriptions and packet ids above
all, is told to its client when it is in the session store. While that is away the log goes on, up to a limit.
"""
