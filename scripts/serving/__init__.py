"""Serving: the services of ``scripts/services``, one module each."""
