"""What all processes agree on: states, messages, codes, limits, file columns. No I/O, imports no other package of ours."""
