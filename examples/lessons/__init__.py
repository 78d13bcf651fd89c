"""The tick shop: a shop of four services and a clock that only counts ticks, small enough to follow with a finger.

``python -m examples.lessons`` tells every lesson; ``python -m examples.lessons lost_ack`` tells one.
"""
