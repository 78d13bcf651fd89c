"""The marketplace that ``bothends demo`` runs: an ordinary application, and what torments and audits it.

``app``, ``events``, ``shop`` and ``wallet`` are the application, on the public API; nothing in them knows of faults. The
rest is the demo: where orders come from, the processes around, the faults, the audit, the run.
"""

from bothends.demo.app import analytics, inventory, orders, payments

__all__ = ["analytics", "inventory", "orders", "payments"]
