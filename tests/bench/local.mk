EXTRA_DIST += tests/bench/step_time.py
