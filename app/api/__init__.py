"""HTTP translation only: what comes in over the wire, and what goes out."""
