"""The `embermq` program: one file a command, no logic.

Rules: a command reads its options, calls one function of a room below and shows the answer. Heavy imports stand
inside the commands. A user's mistake is one line on standard error and exit code 2 (options, configuration) or 1
(all else), never a traceback; a password is never shown.
"""
