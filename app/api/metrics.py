"""The metrics of the API processes. Created once per process, after its place for counters is set.

Invariant: labels come from closed sets only, so the number of series is bounded.
"""

from app.core import telemetry
from app.core.jobstore import Bounds
from app.core.processes import Snapshot


class Metrics:
    """Every counter and gauge of the HTTP edge."""

    def __init__(self, *, slot: int) -> None:
        self.requests = telemetry.counter(
            "http_requests", "Answers by route, method and status.", "route", "method", "code"
        )
        self.refusals = telemetry.counter("http_refusals", "Answers with an error code.", "code")
        self.admitted = telemetry.counter("uploads_admitted", "Uploads that got a place.")
        self.accepted = telemetry.counter("uploads_accepted", "Uploads that became a job.")
        self.replayed = telemetry.counter("uploads_replayed", "Repeated uploads answered with their earlier job.")
        self.upload_bytes = telemetry.counter("upload_bytes", "Bytes of the files accepted.")
        self.upload_seconds = telemetry.histogram("upload_seconds", "Time from admission to acceptance.")
        self._failures = telemetry.counter(
            "server_call_failures", "Calls to a server that failed or were given up.", "server", "call"
        )
        self._in_flight = telemetry.gauge("uploads_in_flight", "Uploads in hand, by process slot.", "slot").labels(
            slot=slot
        )
        self._places_held = telemetry.gauge("places_held", "Jobs admitted and not finished.")
        self._places_bound = telemetry.gauge("places_bound", "How many jobs may be so; infinite without a bound.")
        self._staging_bytes = telemetry.gauge("staging_bytes", "Bytes of uploads held in staging.")
        self._capacity = telemetry.gauge("capacity_jobs_per_second", "Measured capacity of the live workers.")
        # A killed process of this slot may have left its own number behind.
        self.set_in_flight(0)

    def count_failure(self, server: str, call: str) -> None:
        """Count a failed call to a server."""
        self._failures.labels(server=server, call=call).inc()

    def set_in_flight(self, uploads: int) -> None:
        """Show how many uploads this process has in hand."""
        self._in_flight.set(uploads)

    def set_books(self, snapshot: Snapshot, bounds: Bounds) -> None:
        """Show the newest snapshot."""
        self._places_held.set(snapshot.jobs_held)
        self._places_bound.set(float("inf") if bounds.jobs_max is None else bounds.jobs_max)
        self._staging_bytes.set(snapshot.staging_bytes)
        self._capacity.set(snapshot.jobs_per_s)
