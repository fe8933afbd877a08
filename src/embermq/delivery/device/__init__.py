"""Delivery to persistent sessions from the log: live while the client is there, from its stored queue otherwise."""
