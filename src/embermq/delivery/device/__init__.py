"""Delivery to DEVICE clients: very many, few messages each, wanted at once."""
