"""Windows to scores: forward passes, and what is measured of each token."""
