"""Examples of Hypothesis: how many, and whether each run tries the same ones.

The environment variable ``TEST_HYPOTHESIS`` names the profile. ``gate``, the default, tries the
same examples in every run. ``search`` tries twenty times as many, and others in every run; an
example that fails becomes an ``@example``. ``unshrunk`` is ``gate`` without a look for the smallest
example that fails, which a mutation is not worth.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

PROFILE = os.environ.get("TEST_HYPOTHESIS", "gate")
TIMES = 20 if PROFILE == "search" else 1

SLOWNESS = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
    HealthCheck.differing_executors,
]
"""Checks of Hypothesis that a slow machine would fail, or that have no meaning here."""

settings.register_profile(
    "gate",
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=SLOWNESS,
    print_blob=True,
)
settings.register_profile(
    "search", settings.get_profile("gate"), derandomize=False, max_examples=100 * TIMES
)
settings.register_profile(
    "unshrunk", settings.get_profile("gate"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(PROFILE)


def examples(count: int, **more: Any) -> settings:
    """Settings of a test of ``count`` examples in the gate."""
    return settings(max_examples=count * TIMES, **more)
