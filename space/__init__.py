"""The page of the Space: see what the window sees.

From the bottom up: limits, settings and protocols are data; gate and models bring a model in; jobs
and measure run the metric within a budget; segments and paired work on its results; the *_view
modules turn them into HTML; service ties them together; endpoints are the public API and page is
the interface.
"""

import os

# Unless told otherwise, gradio reports each launch to its makers.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
