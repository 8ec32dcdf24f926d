"""How the whole suite runs: the same examples every time, and never decided by timing."""

from hypothesis import HealthCheck, settings

# Hypothesis turns to "ci" by itself where CI is set, so both names mean the same settings.
for profile in ("default", "ci"):
    settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        # This check is a stopwatch too: a busy machine would fail it.
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("default")
