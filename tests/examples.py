"""Examples of Hypothesis: how many, and whether each run tries the same ones.

The environment variable ``TEST_HYPOTHESIS`` names the profile. ``gate``, the default, tries half of
a test's examples, the same ones in every run. ``search`` tries twenty times as many as the test
says, and others in every run; an example that fails becomes an ``@example``. ``unshrunk``, for
mutations, tries all examples, without a look for the smallest one that fails.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

PROFILE = os.environ.get("TEST_HYPOTHESIS", "gate")
TIMES = {"gate": 0.5, "search": 20}.get(PROFILE, 1)

SLOWNESS = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
    HealthCheck.differing_executors,
]
"""Checks of Hypothesis that a slow machine would fail, or that have no meaning here."""

settings.register_profile(
    "gate",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=SLOWNESS,
    print_blob=True,
)
settings.register_profile(
    "search", settings.get_profile("gate"), derandomize=False, max_examples=2000
)
settings.register_profile(
    "unshrunk",
    settings.get_profile("gate"),
    phases=[Phase.explicit, Phase.generate],
    max_examples=100,
)
settings.load_profile(PROFILE)


def examples(count: int, **more: Any) -> settings:
    """Settings of a test of ``count`` examples, before the profile's share."""
    return settings(max_examples=max(1, round(count * TIMES)), **more)
