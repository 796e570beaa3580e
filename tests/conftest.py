"""Fixtures of more than one test file, and how hard properties are tried.

`quick`, in the suite: always the same examples. `unshrunk`: the same for those who only want to know
whether something fails. `torture`, as long as one asks: `make torture SECONDS=600`,
or `pytest tests/properties --hypothesis-profile=torture --hypothesis-seed=4711`.
"""

from hypothesis import HealthCheck, Phase, settings

from opencode_server import shared_opencode

__all__ = ["shared_opencode"]

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "quick",
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=SLOW_IS_FINE,
)
settings.register_profile(
    "torture",
    derandomize=False,  # said because Hypothesis finds out when it runs in a CI, and then repeats itself
    max_examples=40,
    stateful_step_count=80,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=SLOW_IS_FINE,
)
settings.register_profile("unshrunk", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("quick")
