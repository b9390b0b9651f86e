"""How long a job that failed for a passing reason waits: exponential backoff with full jitter. Pure.

Full jitter draws from the whole range, so that jobs that failed together do not return together.
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

import random

#: Doublings after which only the cap counts, so that no count of attempts makes the number too large.
DOUBLINGS_MAX = 30


def backoff_s(attempts_spent: int, *, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Return the seconds before the next attempt: up to `base_s` doubled for each one spent, `cap_s` at most."""
    return rng.uniform(0.0, min(cap_s, base_s * 2 ** min(attempts_spent, DOUBLINGS_MAX)))
