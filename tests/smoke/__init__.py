"""The public smoke: needs an address, a token and a Python since 3.9, nothing else. `make test URL=…` runs it."""
