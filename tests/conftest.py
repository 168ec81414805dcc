"""Property tests: the same examples in every run of the suite, new ones in ``make soak``."""

from __future__ import annotations

from hypothesis import settings

# No deadlines: a slow machine is not a wrong result.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")
