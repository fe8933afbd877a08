"""Delivery to APPLICATION clients: few, each takes a flood and misses nothing while it is away."""
