from bothends.worker.rhythm import Rhythm


def test_what_goes_on_is_not_broken_and_a_pause_is_remembered() -> None:
    rhythm = Rhythm(2.0, 10.0)
    for now_s in (11.0, 12.5, 14.0):
        rhythm.beat(now_s)
    assert not rhythm.broke(10.0, 15.5)
    assert rhythm.broke(10.0, 16.0), "it lasts"
    rhythm.beat(17.0)
    assert rhythm.broke(16.5, 17.5), "it ended after 16.5"
    assert not rhythm.broke(17.0, 18.0), "it had ended before"
