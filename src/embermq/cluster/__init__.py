"""Several brokers as one: so far, that there is one at a time.

Rules: etcd says who should act; what has been acknowledged must not depend on it. No I/O and no clock in here.
"""
