"""Which methods a path knows: what a 405 has to tell (RFC 9110, 15.5.6)."""

from starlette.routing import BaseRoute, Match, Route

from app.api.wire import Scope


def allowed_methods(routes: list[BaseRoute], scope: Scope) -> str:
    """Return the value of `Allow`: the methods of all routes that the path matches, not of the first one alone."""
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return ", ".join(sorted(found))
