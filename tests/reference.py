"""Perplexity the slow and obvious way, to compare with.

Plans are written down from each tool's own description, one list of contexts a target; scores come
from the whole logits of one window at a time, in float64.  Nothing here is shared with the metric.
"""

import math

import torch

START = "start"


def sliding(num_tokens: int, length: int, stride: int, start: str = "none") -> dict[int, list]:
    """What each scored token sees under the metric's own plan: {target: context}.

    A token is scored in the first window that reaches it, given all before it in that window.
    """
    text = list(range(num_tokens))
    if start == "once":
        text = [START, *text]
    seen = {}
    for begin in range(0, len(text), stride):
        if start == "every":
            window = [START, *text[begin : begin + length - 1]]
        elif stride == length:  # and the last row of a window scores the next one's first token
            window = text[begin : begin + length + 1]
        else:
            window = text[begin : begin + length]
        for place, target in enumerate(window):
            if place > 0 and target not in seen:
                seen[target] = window[:place]
    return seen


def guide_windows(num_tokens: int, length: int, stride: int) -> list[dict[int, list]]:
    """The loop of the transformers guide "Perplexity of fixed-length models", window by window."""
    windows = []
    previous_end = 0
    for begin in range(0, num_tokens, stride):
        end = min(begin + length, num_tokens)
        target_length = end - previous_end
        labels = list(range(begin, end))
        labels[: len(labels) - target_length] = [None] * (len(labels) - target_length)
        shifted = labels[1:]  # the model shifts the labels itself, so the first is never scored
        windows.append({label: list(range(begin, label)) for label in shifted if label is not None})
        previous_end = end
        if end == num_tokens:
            break
    return windows


def lm_eval(num_tokens: int, length: int) -> dict[int, list]:
    """`loglikelihood_rolling`: disjoint targets, the last window moved left to full context."""
    seen = {}
    text = [START, *range(num_tokens)]
    for first in range(0, num_tokens, length):
        last = min(first + length, num_tokens)  # targets first .. last - 1
        # in `text`, target t stands at t + 1; a window is `length` inputs and one more token
        begin = max(0, last - length)
        fed = text[begin:last]
        for target in range(first, last):
            seen[target] = fed[: target + 1 - begin]
    return seen


def stock(num_tokens: int, length: int, start: bool) -> dict[int, list]:
    """evaluate's perplexity: the text cut to one window, which the start token is part of."""
    text = list(range(num_tokens))[: length - start]
    return {t: [START] * start + text[:t] for t in text if t > 0 or start}


def llama_cpp(num_tokens: int, length: int, start: bool) -> dict[int, list]:
    """llama-perplexity: full chunks, their first token replaced, the second half scored."""
    seen = {}
    for chunk in range(num_tokens // length):
        fed = list(range(chunk * length, (chunk + 1) * length))
        if start:
            fed[0] = START
        for place in range(length // 2 + 1, length):
            seen[chunk * length + place] = fed[:place]
    return seen


def chunks(num_tokens: int, length: int) -> dict[int, list]:
    """GPTQ's and mlx-lm's: full chunks side by side, the first token of each unscored."""
    return {
        chunk * length + place: list(range(chunk * length, chunk * length + place))
        for chunk in range(num_tokens // length)
        for place in range(1, length)
    }


def exllamav2(num_tokens: int, length: int, stride: int) -> dict[int, list]:
    """Full windows; after the first, the last `stride` tokens of each are scored."""
    seen = {}
    begin = 0
    while begin + length <= num_tokens:
        first = 1 if begin == 0 else begin + length - stride
        for target in range(first, begin + length):
            if target > begin:
                seen[target] = list(range(begin, target))
        begin += stride
    return seen


def megatron(num_tokens: int, length: int, overlap: int) -> dict[int, list]:
    """Megatron-LM's overlapping evaluation: inputs of `length` tokens, targets one further on."""
    targets = num_tokens - 1
    count = math.ceil(max(targets - overlap, 0) / overlap) + 1
    seen = {}
    for window in range(count):
        begin = window * overlap
        fed = list(range(begin, min(begin + length, targets)))
        labels = [place + 1 for place in fed]
        if window > 0:
            # all but the last `overlap` places of a full window are masked
            labels = [label for label in labels if label > begin + length - overlap]
        for target in labels:
            assert target not in seen
            seen[target] = list(range(begin, target))
    return seen


def yarn(num_tokens: int, length: int, stride: int, start: bool) -> list[dict[int, list]]:
    """YaRN's eval/perplexity.py: the start token before every window, which gives up a place."""
    places = length - start
    windows = []
    previous_end = 0
    for begin in range(0, num_tokens, stride):
        end = min(begin + places, num_tokens)
        fed = [START] * start + list(range(begin, end))
        num_labels = end - previous_end  # the last places of the window; a first row has no label
        scored = [place for place in range(1, len(fed)) if place >= len(fed) - num_labels]
        windows.append({fed[place]: fed[:place] for place in scored})
        previous_end = end
        if end == num_tokens:
            break
    return windows


def yarn_truncated(num_tokens: int, length: int, start: bool) -> list[dict[int, list]]:
    """The same with `--truncate`: the text is cut to the window, which then never slides."""
    cut = min(num_tokens, length - start)
    return yarn(cut, length, cut, start)


def longlora(num_tokens: int, length: int, stride: int) -> list[dict[int, list]]:
    """LongLoRA's eval.py: every window scores all it can, and the last one is taken off the list."""
    begins = list(range(0, num_tokens - length, stride))
    begins.pop()
    return [
        {begin + place: list(range(begin, begin + place)) for place in range(1, length)}
        for begin in begins
    ]


def fairseq(num_tokens: int, length: int, stride: int) -> dict[int, list]:
    """fairseq's eval_lm: blocks of new tokens, behind what is kept of the tokens before them.

    `--tokens-per-sample` is `length`, `--context-window` is `length - stride`.
    """
    source = [START, *range(num_tokens - 1)]  # the targets one place earlier
    seen = {}
    kept: list = []
    for first in range(0, num_tokens, stride):
        sample = source[first : first + stride]
        fed = kept + sample
        for place in range(len(sample)):
            seen[first + place] = fed[: len(kept) + place + 1]
        kept = fed[len(fed) - min(len(fed), length - stride) :]
    return seen


def run_clm(lengths: list[int], block: int, texts_at_once: int) -> list[dict[int, list]]:
    """run_clm.py's `group_texts`: blocks of some texts laid end to end, a remainder each time."""
    windows = []
    for number in range(0, len(lengths), texts_at_once):
        before = sum(lengths[:number])
        total = sum(lengths[number : number + texts_at_once])
        for first in range(before, before + total // block * block, block):
            windows.append({first + i: list(range(first, first + i)) for i in range(1, block)})
    return windows


def with_context(num_tokens: int, length: int, stride: int, start: str = "none") -> dict[int, int]:
    """Tokens that each target sees when a window of `length` slides, by counting them one by one."""
    return {
        target: len(seen) for target, seen in sliding(num_tokens, length, stride, start).items()
    }


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask (1, 1, T, T) that transformers add to attention scores as it is."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)[None, None]


@torch.inference_mode()
def carried_nlls(model, ids: list[int], segment: int, memory: int) -> list[float]:
    """Nll of ids[1:] in segments with the keys of `memory` tokens kept: one pass, one banded mask.

    Row i of segment s = i // segment sees the rows from s * segment - memory to i; in deeper
    layers these have seen more, which is what a cache carries on.
    """
    rows = torch.arange(len(ids) - 1)
    first_seen = rows // segment * segment - memory
    visible = (rows[None] >= first_seen[:, None]) & (rows[None] <= rows[:, None])  # (row, key)
    masks = {"full_attention": additive(visible, model.dtype)}
    window = getattr(model.config, "sliding_window", None)
    if window:  # layers with a window of their own see as far as it reaches, of what is kept
        reached = visible & (rows[None] > rows[:, None] - window)
        masks["sliding_attention"] = additive(reached, model.dtype)
    fed = torch.tensor([ids[:-1]])
    mask = masks if len(masks) > 1 else masks["full_attention"]
    logits = model(input_ids=fed, attention_mask=mask).logits[0].double()
    scores = logits.log_softmax(-1)
    return [-scores[row, target].item() for row, target in enumerate(ids[1:])]


@torch.inference_mode()
def log_probs(model, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (T, V) of what follows each token, given it and all before it."""
    return model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)


def nll(model, context_ids: list[int], target_ids: list[int]) -> list[float]:
    """Nlls in nats of targets that follow each other, given the context and the targets before."""
    scores = log_probs(model, context_ids + target_ids[:-1])
    rows = range(len(context_ids) - 1, len(scores))
    return [-scores[row, target].item() for row, target in zip(rows, target_ids)]


def token_nlls(model, ids: list[int], plan: dict[int, list], start_id=None) -> dict[int, float]:
    """Nll of each target of a plan, one target at a time, each from a forward pass of its own."""
    resolved = {}
    for target, context in plan.items():
        fed = [start_id if place == START else ids[place] for place in context]
        resolved[target] = nll(model, fed, [ids[target]])[0]
    return resolved


def window_nlls(model, ids: list[int], plan: dict[int, list], start_id=None) -> dict[int, float]:
    """As `token_nlls`, but targets whose contexts grow by one share a pass: batch 1, all logits."""
    runs: list[list[int]] = []
    for target in sorted(plan):
        follows = runs and plan[target] == [*plan[runs[-1][-1]], runs[-1][-1]]
        runs[-1].append(target) if follows else runs.append([target])
    resolved = {}
    for run in runs:
        context = [start_id if place == START else ids[place] for place in plan[run[0]]]
        resolved |= zip(run, nll(model, context, [ids[target] for target in run]))
    return resolved


def row_nlls(model, row: list[int]) -> list[float]:
    """Nlls of each token of a row after its first, given all before it: (len(row) - 1,)."""
    return nll(model, row[:1], row[1:])


def sliding_perplexity(
    model, texts: list[list[int]], length: int, stride: int, start: str = "once", start_id=None
) -> float:
    """Perplexity of all tokens of texts, each window a plain forward pass."""
    plans = [sliding(len(ids), length, stride, start) for ids in texts]
    scored = [window_nlls(model, ids, plan, start_id) for ids, plan in zip(texts, plans)]
    return math.exp(mean(nll for of_text in scored for nll in of_text.values()))


@torch.no_grad()
def guide_loop(model, ids, max_length, stride):
    """The transformers guide: (label count, loss) of each window, the loss being the model's own."""
    ids = torch.tensor([ids])
    windows, previous_end = [], 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + max_length, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - previous_end)] = -100
        loss = model(ids[:, begin:end], labels=labels).loss.item()
        windows.append((int((labels != -100).sum()), loss))
        previous_end = end
        if end == ids.shape[1]:
            break
    return windows


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def flat(result, name: str = "") -> dict:
    """Values of nested lists and dictionaries, by their path."""
    if not isinstance(result, dict | list):
        return {name: result}
    pairs = result.items() if isinstance(result, dict) else enumerate(result)
    parts = (flat(value, f"{name}.{key}") for key, value in pairs)
    return {key: value for of_part in parts for key, value in of_part.items()}
