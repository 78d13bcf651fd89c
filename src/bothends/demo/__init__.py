"""The marketplace that ``bothends demo`` runs: an ordinary application on the public API, and what torments and audits it.

``shop``, ``app`` and ``wallet`` are the application; nothing in them knows of faults. The rest is the demo: where orders come
from (``orders``, ``seeded``), the processes (``producer``, ``gateway``, ``proxies``), the faults, the audit, the run.
"""
