"""Consuming: from a record of the broker to an effect that is committed once, and back to the acknowledgement.

    member ─▶ slots ─▶ seats (connection, context, handler) ─▶ inbox engine (one transaction) ─▶ member acknowledges
                                                               parking (keys that wait) ◀──┘

``deliveries`` and ``acts`` are the words that they share; ``engine`` is what ``inbox`` and ``parking`` have in common.
"""

from bothends.worker.member import Worker

__all__ = ["Worker"]
