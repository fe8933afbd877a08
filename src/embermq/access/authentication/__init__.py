"""Who may enter, and as what: a chain of steps that each know one kind of proof.

Rules: a step answers *this is who it is*, *no*, or *not mine*, and knows no other step; `gate` is what the server sees.
Work that takes long (a hash, a file, a request) is done off the event loop and bounded. What a client proves itself
with is in no log line, error or repr. A step's libraries are loaded when the step is in the chain. `app` builds it.
"""
