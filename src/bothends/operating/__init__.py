"""Processes that run for long: from an APP's name to its services, supervisor and children, and embedding in another's
process. Nothing here decides about events."""
