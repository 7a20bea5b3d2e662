"""A model beside the reference of the page's settings."""

from dataclasses import replace

from perplexity_sliding.views.comparison import comparison_view

from .score_view import warn_of_few
from .service import Compared


def compare_view(compared: Compared) -> str:
    """Show a comparison, with a mark of the settings that it was asked for."""
    # The page's model is the reference here, and its sliders may ask for more than both take.
    asked = replace(compared.asked, model=compared.reference.name)
    view = comparison_view(compared.pair, asked.mark(compared.scored.text))
    return warn_of_few(compared.scored) + view
