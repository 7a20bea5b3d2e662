"""Windows to scores: forward passes, and the measures of each token."""
