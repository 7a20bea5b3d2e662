"""The page of the Space.

From the bottom up: limits, settings and protocols are data; gate and models bring a model in; jobs
and measure run the metric within a budget; segments and paired work on its results; the *_view
modules turn them into HTML; service ties them together; endpoints are the public API and page is
the interface.
"""

import os

# Unless told otherwise, gradio reports each launch to its makers.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Torch reads it when it is imported.  Its threads wait for each other awake, and where something else
# computes on these cores, as a browser beside the page does, a score took thirty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
