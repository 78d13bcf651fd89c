"""The relay that reads the log, on a real server."""

from __future__ import annotations

from bothends.relay.events import SourceChanged


def reads(running, source="wal"):
    return any(e.source == source for e in running.saw(SourceChanged)[-1:])


def test_the_log_is_read(pg_log):
    rig = pg_log
    rig.broker.create_topic("t", 4)
    rig.add("t", b"k", b"1", b"2")
    a = rig.start(source="wal")
    rig.until(lambda: reads(a))
    rig.add("t", b"k", b"3", b"4")
    rig.until(lambda: len(rig.bodies("t")) == 4)
    assert rig.bodies("t") == [b"1", b"2", b"3", b"4"]
    rig.until(rig.drained)
