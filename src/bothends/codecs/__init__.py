"""Bytes to events and back."""
