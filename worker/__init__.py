"""The background roles: worker, relay and janitor. Sees of `app` only `app.core`."""
