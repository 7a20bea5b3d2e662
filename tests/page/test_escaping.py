"""A visitor's text never becomes HTML."""

from pages import MANY, OWN_TAGS, Reader, pieces_of

from perplexity_sliding.views.markup import escape
from space import handlers as page_handlers
from space.compare_view import compare_view
from space.gain_view import gain_view
from space.handlers import SCORE_OUTPUTS
from space.jobs import Job
from space.limits import Refused
from space.models import BUNDLED
from space.settings import Settings
from space.share_view import share_view
from space.sweep_view import protocol_view, trade_off_view
from space.takeaway import of_models, of_score, of_strides, of_tools


def test_escaped_text_is_the_same_text():
    page = escape(MANY)
    assert not set(page) & set("<>\"'{}$`")
    assert "".join(Reader(page).text) == MANY


def test_no_view_lets_a_visitors_text_become_html(service):
    evil = "\"><img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}{{x}}' onclick=x "
    settings = Settings(BUNDLED, 64, 32)
    scored = service.score(evil * 4, settings, Job(60))
    compared = service.compare(evil * 4, settings, "owner/words", Job(60), clip=True)
    trade_off = service.trade_off(evil * 4, settings, Job(60))
    protocols = service.every_protocol(evil * 4, settings, Job(60))
    html_views = [render(scored) for render in SCORE_OUTPUTS.values()]
    html_views += [compare_view(compared), trade_off_view(trade_off), gain_view(trade_off)]
    html_views += [protocol_view(protocols)]
    taken = (
        of_score(scored),
        of_models(compared),
        of_strides(trade_off, settings),
        of_tools(protocols),
    )
    drawers = [share_view(one) for one in taken]
    for page in html_views + drawers:
        reader = Reader(page)
        assert reader.tags - {"img"} <= OWN_TAGS and page.count("<img") == (page in drawers)
        assert not {name for name in reader.attributes if name.startswith("on")}
        assert not set(page) & set("{}$`")  # signs that a template would act on
    assert pieces_of(SCORE_OUTPUTS["text"](scored))["text"] == evil * 4


def test_a_models_name_never_becomes_html(service):
    page = page_handlers.alert(str(Refused("<img src=x onerror=alert(1)>")))
    assert Reader(page).tags <= OWN_TAGS
