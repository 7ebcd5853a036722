"""Before/after comparisons: the plan, the interleaved rounds, and picking up after a crash."""
