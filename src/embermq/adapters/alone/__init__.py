"""Membership where nobody else can be: in the memory of this process."""
