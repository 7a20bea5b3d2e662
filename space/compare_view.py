"""A model beside the reference of the page's settings."""

from perplexity_sliding.views.comparison import comparison_view

from .score_view import warn_of_few
from .service import Compared


def compare_view(compared: Compared) -> str:
    """Show a comparison, marked with its settings."""
    view = comparison_view(compared.pair, compared.page_settings.mark(compared.scored.text))
    return warn_of_few(compared.scored) + view
