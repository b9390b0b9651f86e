"""The local stack, the command line, and the only place where everything meets."""
