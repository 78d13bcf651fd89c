"""Programs: what is measured; those of peers from PyPI run in environments of their own, without this package."""
