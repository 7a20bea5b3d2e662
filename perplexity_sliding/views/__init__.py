"""What a scored text looks like: the pieces that the page, reports and notebooks share.

No door owns them: they know results of the metric, and neither gradio nor the command line.
"""
