"""Who gets a message, when and how often: `device` and `application` clients."""
