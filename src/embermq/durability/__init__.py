"""What the broker still owes after a crash: the order in which a tick reaches the stores of the servers profile
(`log_first`), what a start takes from the log's tail and dispatches again (`recovery`), what may leave
the message log, and the bodies that are still needed when it has (`retention`).

Rules: no I/O but through ports; nothing is told to anybody before its commit. `edge` and `app` call it, `delivery`
reads bodies with it.
"""
