"""Everything between the wire and the handlers, put together: what each request passes, from the outside in.

Invariant: who is refused by an outer layer costs the inner ones nothing.
"""

from app.api.cors import let_in
from app.api.exchange import App, Exchange
from app.api.gate import Gate, GateParts
from app.api.guesses import Guard, Guesses
from app.api.routes import make_app
from app.api.services import Services
from app.core.clock import monotonic_s


def edge(services: Services) -> App:
    """Return the whole HTTP edge of a process."""
    settings = services.settings
    gate = Gate(make_app(services), _gate_parts(services))
    guesses = Guesses(failures_max=settings.auth_failures_per_minute_max, monotonic_s=monotonic_s)
    open_prefixes = ("/health/",) if settings.metrics_token_required else ("/health/", "/metrics")
    guard = Guard(gate, guesses=guesses, authenticator=services.authenticator, open_prefixes=open_prefixes)
    return Exchange(let_in(guard, origins=settings.cors_origins), metrics=services.metrics)


def _gate_parts(services: Services) -> GateParts:
    return GateParts(
        settings=services.settings,
        jobs=services.jobs,
        uploads=services.uploads,
        admission=services.admission,
        reserving=services.reserving,
        authenticator=services.authenticator,
        metrics=services.metrics,
    )
