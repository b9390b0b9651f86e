"""The HTTP edge and what it shares with the background roles."""
