"""Texts for the page, a visitor to it, and readers of what its views show."""

from html.parser import HTMLParser

PATIENT = {"timeout": 120}  # of an answer on a busy machine
STORY = "It was late, and the lamp had gone out again. Nobody went to light it. " * 12
MANY = "Ça, c’est naïve: 你好 e\u0301 👩‍👩‍👧 🇩🇪! <script>alert(1)</script> & \"'`${x} {{y}}\n\tend"


class Reader(HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


OWN_TAGS = {
    "a", "b", "button", "code", "dd", "div", "dl", "dt", "fieldset", "details", "summary", "em",
    "figcaption", "figure", "h3", "i", "label", "legend", "input", "li", "ol", "output", "p",
    "path", "polygon", "polyline", "small", "span", "svg", "table", "rect", "tbody", "td", "th",
    "thead", "tr", "ul", "progress",
}  # fmt: skip
