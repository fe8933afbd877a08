"""Delivery to APPLICATION sessions from the logs that the pipeline fills."""
