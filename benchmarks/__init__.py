"""EmberMQ beside other brokers, in one run on one machine: `make bench`.

`brokers` starts and stops them, `plan` says what is measured, `machine` on what, `run` does it and shows the figures.
"""
