"""The message log in a store of its own, before everything else: the records of a tick first, then the rest of it.

What is acknowledged to a publisher is in both. What a crash in between leaves is records that nobody was told of; they
are found at the next start and treated as what they are: accepted.
"""
