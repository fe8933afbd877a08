"""Delivery that keeps nothing: sessions that end with their connection, and QoS 0 to everybody."""
