"""Measurements beside their reference: `python -m bench [NAMES...]`. What they found: docs/benchmarks.md."""
