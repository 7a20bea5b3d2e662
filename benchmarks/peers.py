"""Other tools: reimplemented from their descriptions, or called if they are installed.

Each returns the number that it reports, so that a comparison of times is one of equal work.
"""

import contextlib
import io
import math

import torch
import transformers


def guide_loop(model, tokenizer, text: str, max_length: int, stride: int) -> float:
    """The transformers guide, "Perplexity of fixed-length models", with its mean of window means.

    One window a forward pass; the logits of all its rows; the loss by `labels`, in which the tokens
    that an earlier window scored are masked.
    """
    ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids  # (1, N)
    losses = []
    previous_end = 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + max_length, ids.shape[1])
        window = ids[:, begin:end]
        labels = window.clone()
        labels[:, : previous_end - begin] = -100
        with torch.no_grad():
            losses.append(model(window, labels=labels).loss)
        previous_end = end
        if end == ids.shape[1]:
            break
    return torch.stack(losses).mean().exp().item()


def stock_metric(folder: str, tokenizer, texts: list[str], batch_size: int = 16) -> float:
    """The algorithm of evaluate's own perplexity metric; returns its `mean_perplexity`.

    The model is loaded at every call, all texts are padded to the longest of them, and every row of
    logits is computed and shifted.
    """
    # In float32, as transformers 4 does by itself: the stock metric runs on no other.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    encoded = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    perplexities = []
    for first in range(0, len(texts), batch_size):
        ids = encoded.input_ids[first : first + batch_size]
        mask = encoded.attention_mask[first : first + batch_size]
        start = torch.full((len(ids), 1), tokenizer.bos_token_id)
        ids = torch.cat([start, ids], dim=1)  # (B, 1 + T)
        mask = torch.cat([torch.ones_like(start), mask], dim=1)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask).logits  # (B, 1 + T, V)
        rows = logits[:, :-1].contiguous()
        counted = mask[:, 1:].contiguous()
        nll = torch.nn.functional.cross_entropy(
            rows.transpose(1, 2), ids[:, 1:].contiguous(), reduction="none"
        )
        perplexities += ((nll * counted).sum(1) / counted.sum(1)).exp().tolist()
    return sum(perplexities) / len(perplexities)


class Harness:
    """lm-evaluation-harness over a live model.

    Args:
        batch_size: as on its command line, where 1 is the default.
    """

    def __init__(self, model, tokenizer, batch_size: int):
        from lm_eval.models.huggingface import HFLM

        with _silence():
            self.model = HFLM(
                pretrained=model, tokenizer=tokenizer, batch_size=batch_size, device="cpu"
            )

    def __call__(self, texts: list[str]) -> float:
        """The total negative log-likelihood of the texts in nats, by `loglikelihood_rolling`."""
        from lm_eval.api.instance import Instance

        requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
        with _silence():
            return -math.fsum(self.model.loglikelihood_rolling(requests, disable_tqdm=True))


@contextlib.contextmanager
def _silence():
    """Hide progress bars, which would be timed and cannot all be disabled."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
