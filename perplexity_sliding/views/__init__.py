"""HTML views of scored texts, shared by the page, reports and notebooks.

No door owns them: they know results of the metric, and neither gradio nor the command line.
"""
