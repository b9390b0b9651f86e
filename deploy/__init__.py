"""Running Spillway in containers: what the image and compose.yaml need, and their trial."""
