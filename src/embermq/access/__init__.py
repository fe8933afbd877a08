"""Who may enter (`authentication/`), and who may do what (`authorization/`).

Rules: each is asked and answers; neither changes a session. What a client proves itself with is in no log line, error
or repr. `sessions`, `intake` and `edge` ask; `app` builds the chain of steps and reads the files of rules.
"""
