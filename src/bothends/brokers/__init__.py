"""Brokers: one module each, all behind the ports of ``bothends.ports``."""
