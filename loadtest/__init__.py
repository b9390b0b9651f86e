"""Load generation and sampling: measures the product from outside, so it imports only contracts."""
