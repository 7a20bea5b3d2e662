"""A visitor's text never becomes HTML."""

from pages import OWN_TAGS, Reader

from perplexity_sliding.views.comparison import comparison_view
from space.jobs import Job
from space.memory_view import memory_view
from space.models import BUNDLED
from space.page import write_page
from space.settings import Settings
from space.tools_view import tools_view


def test_no_view_lets_a_visitors_text_become_html(service):
    evil = "\"><img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}{{x}}' onclick=x "
    settings = Settings(BUNDLED, 64, 32)
    compared = service.compare(evil * 4, settings, "owner/words", Job(60), clip=True)
    views = [
        comparison_view(compared.pair),
        memory_view(service.memory(evil * 4, settings, Job(60))),
        tools_view(service.every_protocol(evil * 4, settings, Job(60))),
    ]
    for page in views:
        reader = Reader(page)
        assert reader.tags <= OWN_TAGS
        assert not {name for name in reader.attributes if name.startswith("on")}


def test_data_in_the_page_ends_no_script():
    text = {"pieces": {"text": "</script><b>&"}}
    opening = {"text": text, "perplexity": 9.0, "verdict": "<b>"}
    page = write_page({"opening": opening, "teasers": {"tools": "<i>"}})
    assert page.count("</script>") == 3 and "&lt;/script&gt;&lt;b&gt;&amp;" in page
