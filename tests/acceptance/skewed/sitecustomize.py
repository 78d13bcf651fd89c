"""A wrong wall clock for one process: ``PROVE_CLOCK_S`` seconds are added to what Python code reads from it. Python imports
this by itself where the folder is on PYTHONPATH. ``datetime.now`` and C libraries still see the right time."""

import os
import time

_SKEW_S = float(os.environ.get("PROVE_CLOCK_S", "0"))
_time, _time_ns, _clock_gettime = time.time, time.time_ns, time.clock_gettime

time.time = lambda: _time() + _SKEW_S
time.time_ns = lambda: _time_ns() + int(_SKEW_S * 1e9)
time.clock_gettime = lambda clock: _clock_gettime(clock) + (_SKEW_S if clock == time.CLOCK_REALTIME else 0.0)
