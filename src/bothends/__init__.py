"""Transactional outbox, relay and inbox: reliable messages between databases and brokers."""
