"""Logs: what the embedded and the memory broker have in common. A ``Log`` keeps records, positions and memberships; the
broker, its publishers and its group members are the same for both."""
