"""Several brokers as one: what each of them takes in of the others, and who belongs where.

Rules: etcd says who should act; what has been acknowledged must not depend on it. No I/O and no clock in here.
"""
