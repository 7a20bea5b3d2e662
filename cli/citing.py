"""--cite: the sentence for a paper, and what to cite."""

from .tables import format_number, signature_fields

SENTENCE = """\
The perplexity of {model} is {perplexity}{interval} over {tokens:,} tokens in {texts}, measured in \
windows of {window} tokens with a stride of {stride} (protocol {protocol}{source}; {signature}; \
perplexity-sliding {version})."""


def of_result(result: dict, source: str | None, citation: str) -> str:
    """The sentence with the number, its interval and signature; the long signature; BibTeX.

    Args:
        source: whose protocol it is; None where it is the metric's own.
        citation: the metric's BibTeX.
    """
    fields = signature_fields(result)
    bounds = result["perplexity_interval"]
    count = len(result["perplexities"])
    sentence = SENTENCE.format(
        model=fields["model"],
        perplexity=format_number(result["perplexity"]),
        interval=""
        if bounds is None
        else f" (95 % interval {result['interval_scope']} "
        f"{format_number(bounds[0])}–{format_number(bounds[1])})",
        tokens=result["num_tokens"],
        texts="one text" if count == 1 else f"{count:,} texts",
        window=fields["window"],
        stride=fields["stride"],
        protocol=fields["protocol"],
        source="" if source is None else f", {source}",
        signature=result["signature_short"],
        version=fields["version"],
    )
    return f"{sentence}\n\n{result['signature']}\n\n{citation.strip()}"
