"""What operators do with a broker's data, beside the broker or while it is down: back up, check the stores, replay,
trace, report, move a configuration in. One module an errand; each opens what it needs through `app`.

Rules: nothing in here runs within the broker. Called by `cli` and by tests.
"""
