#!/usr/bin/env python3
"""Print what a file of `llama-perplexity --kl-divergence-base` says of the tokens it scores.

    decode_logits.py FILE

Layout: "_logits_", int32 window, vocabulary and number of windows, int32 token ids, and for each scored
row a float32 step s and offset m with one uint16 code a logit, which stands for the log-probability
s * code + m.
"""

import sys
from pathlib import Path

import numpy as np

data = Path(sys.argv[1]).read_bytes()
assert data[:8] == b"_logits_"
window, vocabulary, num_windows = np.frombuffer(data, np.int32, 3, 8).tolist()
tokens = np.frombuffer(data, np.int32, window * num_windows, 20).reshape(num_windows, window)
first = window // 2 + 1
rows = np.frombuffer(data, np.uint16, offset=20 + 4 * tokens.size)
rows = rows.reshape(num_windows, window - first, 2 * ((vocabulary + 1) // 2) + 4)
steps = rows[:, :, :4].copy().view(np.float32).astype(np.float64)  # (windows, rows, 2)
targets = tokens[:, first:, None]
codes = np.take_along_axis(rows[:, :, 4:], targets, 2)[:, :, 0]
nll = -(steps[:, :, 0] * codes + steps[:, :, 1])
clamped = (rows[:, :, 4 : 4 + vocabulary] == 0).mean()
print(f"window {window}, vocabulary {vocabulary}, windows {num_windows}, scored {nll.size}")
print(f"mean nll {nll.mean():.9f}, largest {nll.max():.6f}, codes of 0 {100 * clamped:.2f} %")
print("first nlls", " ".join(f"{value:.6f}" for value in nll.ravel()[:8]))
