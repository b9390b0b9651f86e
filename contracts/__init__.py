"""What all processes agree on: states, messages, codes, limits, file columns. No I/O, imports nothing of ours."""
