"""`embermq import-embedded`: what an embedded broker has goes into Kafka, Redis and SQL, and its clients go on there.

Rules: stores are read and written through the adapters of the ports. Positions stay what they are: the embedded log is
partition 0 of the new one, which has nothing in it, and the new one goes on in partition 1. Every step may be repeated.
Nothing counts before it is compared: a broker refuses the Redis until then.
"""
