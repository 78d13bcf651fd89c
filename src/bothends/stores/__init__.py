"""Databases: one package per dialect; what they share is in this folder."""
