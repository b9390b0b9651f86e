"""Named constants shared by several processes that are not settings: changing one changes the contract."""

#: `count` never bounds the unfinished work under this many jobs, also before any worker has registered.
JOBS_BOUND_FLOOR = 32

#: Default target of the `count` policy: this many seconds of measured capacity.
BACKLOG_TARGET_S = 10.0

#: ... and at least this many times the worker slots.
BACKLOG_SLOTS_FACTOR = 4

#: Header bytes from which format and dimensions must be readable.
SNIFF_BYTES = 64 * 1024

#: A job that has killed its worker this often is final (`worker_lost`).
DEATHS_MAX = 3

#: A fuse only: the broker gives up on a message after this many returns; the row decides long before.
DELIVERIES_MAX = 50

#: Bounds of every `Retry-After`, seconds, and its spread so that refused clients do not return together.
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0
RETRY_AFTER_JITTER = 0.25

#: First poll hint in the answer to an accepted upload, seconds, when nothing better is known.
POLL_AFTER_S = 3
