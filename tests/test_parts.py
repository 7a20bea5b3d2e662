"""Texts scored in part: after contexts, in spans, in chats; the rest is read, not scored."""

import itertools
import json
import math
import re
import warnings

import numpy as np
import pytest
import reference
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    SlowTokenizer,
    make_model,
    make_tokenizer,
    random_text,
)
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as token_models
from transformers import PreTrainedTokenizerFast

from perplexity_sliding.plan.parts import find_part
from perplexity_sliding.plan.tokenization import vocabulary_texts
from perplexity_sliding.plan.windows import last_window, plan_windows, restrict_windows


def close(value):
    return pytest.approx(value, rel=1e-5)


def make_merging_tokenizer(trim_offsets=False, **kwargs):
    """Byte-level BPE in which " o", "ld" and " old" are tokens, and all bytes are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<bos>", "<eos>", *alphabet, "Ġo", "ld", "Ġold", "Ġa"]
    backend = Tokenizer(
        token_models.BPE(
            {token: number for number, token in enumerate(tokens)},
            merges=[("Ġ", "o"), ("l", "d"), ("Ġo", "ld"), ("Ġ", "a")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", **kwargs
    )


@pytest.fixture(scope="module")
def merging():
    return make_merging_tokenizer()


@pytest.fixture(scope="module")
def byte_model():
    return make_model("gpt2", vocab_size=262, n_positions=64).double()


@pytest.fixture
def measure(metric, gpt2, tokenizer):
    """Measure under the tiny model whose tokens are words."""
    given = {"model": gpt2, "tokenizer": tokenizer}
    return lambda *texts, **kwargs: metric.compute(predictions=texts, **(given | kwargs))


@pytest.fixture
def merge(metric, byte_model, merging):
    """Measure under a model of bytes, some of which are merged."""
    given = {"model": byte_model, "tokenizer": merging}
    return lambda *texts, **kwargs: metric.compute(predictions=texts, **(given | kwargs))


# --- windows over a part --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start, length, stride",
    [("none", 8, 8), ("none", 5, 3), ("once", 8, 4), ("once", 8, 8), ("every", 8, 1)],
)
@pytest.mark.parametrize("targets", [[(20, 26)], [(3, 4), (9, 10), (11, 30)], [(0, 40)]])
def test_restricted_windows_score_the_targets_with_the_context_they_have(
    start, length, stride, targets
):
    whole = list(plan_windows(40, length, stride, start))
    expected = {t: w.context_length(t) for w in whole for t in range(w.first, w.end)}
    wanted = {t for first, end in targets for t in range(first, end)} & expected.keys()
    windows = restrict_windows(whole, targets)
    scored = [(t, w.context_length(t)) for w in windows for t in range(w.first, w.end)]
    assert scored == [(t, expected[t]) for t in sorted(wanted)]
    assert {w.begin for w in windows} <= {w.begin for w in whole}


@pytest.mark.parametrize("num_tokens, first", [(5, 2), (9, 3), (10, 3), (30, 28), (30, 22), (6, 0)])
@pytest.mark.parametrize("starts", [False, True])
def test_last_window_is_the_harness_s_slice(num_tokens, first, starts):
    """`(context + continuation)[-(L + 1):][:-1]`, the continuation's rows scored."""
    length = 8
    starts = starts or first == 0  # what follows a text is read behind the start token too
    row = ["start", *range(num_tokens)] if starts else list(range(num_tokens))
    fed = row[-(length + 1) :][:-1]
    window = last_window(num_tokens, first, length, starts)
    read = ["start"] * window.start_token + list(range(window.begin, window.end - 1))
    assert read == fed
    assert (window.first, window.end) == (first, num_tokens)


# --- which tokens are a part's --------------------------------------------------------------------

OFFSETS = np.array([[0, 3], [3, 5], [5, 9], [9, 10], [9, 10], [10, 12]])  # two bytes of a character


@pytest.mark.parametrize(
    "spans, targets, tails",
    [
        ([(0, 12)], ((0, 6),), ("",)),
        ([(3, 12)], ((1, 6),), ("",)),
        ([(7, 12)], ((2, 6),), ("fg",)),  # a token across the first edge
        ([(3, 7)], ((1, 3),), ("",)),  # and across the last one
        ([(9, 10)], ((3, 5),), ("",)),  # every byte of a character
        ([(0, 3), (5, 9)], ((0, 1), (2, 3)), ("", "")),
        ([(0, 4), (4, 5)], ((0, 2),), ("",)),  # two spans share a token
        ([(0, 4), (4, 9)], ((0, 3),), ("",)),  # of which the second goes on
        ([(0, 3), (3, 5)], ((0, 1), (1, 2)), ("", "")),
    ],
)
def test_find_part(spans, targets, tails):
    text = "abcdefghiéjk"
    part = find_part(text, OFFSETS, spans)
    assert part.targets == targets
    assert part.tails == tails
    assert part.of(text) == "".join(text[first:end] for first, end in spans)


def test_white_space_is_the_token_s_though_offsets_leave_it_out(merge):
    """The context's last space is part of " old", which is scored as a whole."""
    tokenizer = make_merging_tokenizer(trim_offsets=True)
    assert tokenizer.tokenize("The old") == ["T", "h", "e", "Ġold"]
    with pytest.warns(UserWarning, match="edge .* in the texts at position 1 .first: ' old'"):
        result = merge(" old", "old", contexts=["The", "The "], tokenizer=tokenizer)
    assert result["num_tokens_per_text"] == [1, 1]
    assert result["num_context_tokens"] == 6


# --- conditional scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("start", [True, False])
def test_chain_rule(metric, tokenizer, name, start):
    """nll(context + text) = nll(context) + nll(text | context), for lengths beyond the window."""
    model = make_model(name)
    contexts = [random_text(n, seed=n) for n in (3, 20, 41)]
    texts = [" " + random_text(n, seed=n + 7) for n in (30, 2, 19)]
    settings = {
        "model": model,
        "tokenizer": tokenizer,
        "max_length": CONTEXT,
        "stride": 5,
        "add_start_token": start,
    }

    def total(predictions, **kwargs):
        return metric.compute(predictions=predictions, **settings, **kwargs)["total_nll"]

    whole = total([context + text for context, text in zip(contexts, texts)])
    assert whole == close(total(contexts) + total(texts, contexts=contexts))


def test_every_number_is_of_the_scored_part(measure, gpt2, tokenizer):
    contexts, texts = [random_text(30), random_text(5)], [" w5 w6 w7", " w8 w9"]
    result = measure(*texts, contexts=contexts, return_token_scores=True, stride=4)
    expected = []
    for context, text in zip(contexts, texts):
        ids = tokenizer(context + text)["input_ids"]
        first = len(tokenizer(context)["input_ids"])
        plan = reference.sliding(len(ids), CONTEXT, 4, "once")
        scores = reference.window_nlls(gpt2, ids, plan, BOS)
        expected.append([scores[target] for target in range(first, len(ids))])
    flat = list(itertools.chain(*expected))
    assert result["perplexities"] == close([math.exp(np.mean(nlls)) for nlls in expected])
    assert result["perplexity"] == close(math.exp(np.mean(flat)))
    assert (result["num_tokens"], result["num_tokens_per_text"]) == (5, [3, 2])
    assert result["num_context_tokens"] == 35
    octets = sum(len(text) for text in texts)
    assert result["bits_per_byte"] == close(sum(flat) / octets / math.log(2))
    assert result["word_perplexity"] == close(math.exp(sum(flat) / 5))
    for scores, nlls in zip(result["token_scores"], expected):
        context = len(scores["nll"]) - len(nlls)
        assert scores["nll"][:context] == [None] * context
        assert scores["nll"][context:] == close(nlls)


def test_joint_scores_a_token_across_the_join_as_a_whole(merge, byte_model, merging):
    """c = "The ol", t = "d": lm-eval dies of it, minicons scores nothing."""
    ids = merging("The old")["input_ids"]
    expected = -reference.log_probs(byte_model, [BOS, *ids])[3, ids[3]].item()
    with pytest.warns(UserWarning, match="at position 0 .first: ' old'"):
        result = merge("d", contexts=["The ol"])
    assert result["total_nll"] == close(expected)


def test_ids_that_no_token_has_leave_gaps():
    """Of tokens behind their number, words knew nothing: 0.7 nats."""
    written = json.loads(make_merging_tokenizer().backend_tokenizer.to_str())
    written["model"]["vocab"]["Ġold"] = 300
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(written)))
    texts = vocabulary_texts(tokenizer)
    assert (len(texts), texts[299], texts[300]) == (301, "", " old")


def test_separate_tokenizes_apart(merge, byte_model, merging):
    context, text = merging("The ol")["input_ids"], merging("d man")["input_ids"]
    rows = reference.log_probs(byte_model, [BOS, *context, *text])
    expected = -sum(rows[len(context) + n, token].item() for n, token in enumerate(text))
    result = merge("d man", contexts="The ol", boundary="separate")
    assert result["total_nll"] == close(expected)
    assert result["num_context_tokens"] == len(context)


def test_slow_tokenizers_score_contexts_apart(measure):
    fast = measure(" w5 w6", contexts="w7 w8")
    slow = measure(" w5 w6", contexts="w7 w8", tokenizer=SlowTokenizer(), boundary="separate")
    assert slow["total_nll"] == close(fast["total_nll"])
    with pytest.raises(ValueError, match="`tokenizer` must be a fast tokenizer"):
        measure(" w5 w6", contexts="w7 w8", tokenizer=SlowTokenizer())


def test_spans_are_what_is_between_them_given(measure):
    """Two turns of a text and all of it: the scores of a token do not depend on the spans."""
    text = random_text(40)
    ends = [match for match in range(len(text)) if text[match] == " "]
    spans = [(0, ends[3]), (ends[20], ends[25]), (ends[30], len(text))]
    whole = measure(text, return_token_scores=True, stride=6)
    result = measure(text, score_spans=[spans], return_token_scores=True, stride=6)
    scored = [*range(4), *range(21, 26), *range(31, 40)]
    everything = whole["token_scores"][0]["nll"]
    expected = [nll if n in scored else None for n, nll in enumerate(everything)]
    assert [nll is None for nll in result["token_scores"][0]["nll"]] == [
        nll is None for nll in expected
    ]
    assert result["total_nll"] == close(sum(nll for nll in expected if nll is not None))
    assert result["num_tokens"] == len(scored)
    characters = sum(end - first for first, end in spans)
    assert result["bits_per_character"] == close(result["total_nll"] / characters / math.log(2))
    assert result["num_windows"] <= whole["num_windows"]


@pytest.mark.parametrize(
    "spans, words",
    [
        ([(0, 2), (6, 8)], 2),  # were one: 428,902 for 67,257
        ([(0, 5), (6, 8)], 3),
        ([(0, 1), (1, 2), (6, 8)], 2),  # the first two touch
    ],
)
def test_no_word_goes_from_one_span_to_the_next(measure, spans, words):
    result = measure("w5 w6 w7 w8", score_spans=[spans])
    per_word = math.log(result["word_perplexity"])
    assert per_word == pytest.approx(result["total_nll"] / words, rel=1e-6)


@pytest.mark.parametrize("protocol", ["mlx-lm", "run-clm", "fairseq", "longlora"])
def test_no_word_goes_from_one_text_to_the_next(measure, protocol):
    """Where tokens are joined there is no white space between: 61 words for 100."""
    texts = [random_text(3 + n % 2, seed=n) for n in range(20)]
    counted = measure(*texts, protocol=protocol, max_length=8)
    given = measure(*texts, protocol=protocol, max_length=8, detokenizer="wikitext")  # no change
    assert counted["word_perplexity"] == given["word_perplexity"]


# --- lm-evaluation-harness ------------------------------------------------------------------------

PAIRS = [
    ("w3 w4 w5", " w6 w7"),
    ("w3 w4 w5  ", "w6"),  # white space at the end of the context is the text's
    ("", "w8 w9 w10"),
    (random_text(60), " " + random_text(CONTEXT)),  # the longest text there may be
    (random_text(60), " " + random_text(3)),
    ("<bos> w3", " w4"),
    ("", "<bos> w5 w6"),
    ("", random_text(CONTEXT)),
]


@pytest.mark.parametrize("kind", [{}, {"bos": False}, {"adds_bos": True}])
def test_lm_eval_loglikelihood(metric, gpt2, kind):
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    tokenizer = make_tokenizer(**kind)
    model = huggingface.HFLM(pretrained=gpt2, tokenizer=tokenizer, batch_size=2, device="cpu")
    requests = [
        Instance("loglikelihood", doc={}, arguments=pair, idx=number)
        for number, pair in enumerate(PAIRS)
    ]
    theirs = [-ll for ll, _ in model.loglikelihood(requests, disable_tqdm=True)]
    contexts, texts = zip(*PAIRS)
    result = metric.compute(
        predictions=texts, contexts=contexts, model=gpt2, tokenizer=tokenizer,
        protocol="lm-eval", return_token_scores=True,
    )  # fmt: skip
    ours = [sum(nll for nll in s["nll"] if nll is not None) for s in result["token_scores"]]
    assert ours == close(theirs)


@pytest.mark.parametrize("appends", [False, True])
def test_lm_eval_reads_the_context_s_own_tokens(merge, byte_model, appends):
    """Where a token spans the join they are others than in both together: 3.3 for 13.4 nats."""
    tokenizer = make_merging_tokenizer()
    if appends:
        ending = [("<eos>", tokenizer.eos_token_id)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <eos>", special_tokens=ending
        )
    context, text = "The ol", "d man was old"
    alone, whole = (tokenizer(words).input_ids for words in (context, context + text))
    assert alone != whole[: len(alone)]
    result = merge(text, contexts=context, tokenizer=tokenizer, protocol="lm-eval")
    expected = reference.nll(byte_model, alone, whole[len(alone) :])
    assert result["num_tokens"] == len(expected)
    assert result["total_nll"] == pytest.approx(sum(expected))


def test_lm_eval_s_assertions_are_errors(measure, merge):
    with pytest.raises(ValueError, match=f"at most max_length={CONTEXT} tokens after .* got 17"):
        measure(random_text(CONTEXT + 1), contexts="w3 ", protocol="lm-eval")
    with pytest.raises(
        ValueError, match=r"at least 1 token in the scored part, .*: a token spans the join"
    ):
        merge(" x", "d", contexts="The ol", protocol="lm-eval")


# --- chats ----------------------------------------------------------------------------------------

PROMPT = "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
TURNS = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <eos>\n' }}{% endfor %}"
)
PLAIN_TEMPLATE = TURNS + PROMPT
# As in Llama 2: the header of an answer is the end of the question, and there is no prompt.
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + ' <eos>' }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' }}"
    "{% if m['role'] == 'assistant' and loop.last %}w20 {% endif %}{{ m['content'] + ' <eos>\n' }}"
    "{% endfor %}" + PROMPT
)
MARKED_TURNS = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + ' <eos>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + ' <eos>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


def chat_of(*contents, first="user"):
    """A chat in which two take turns."""
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]


CHAT = chat_of("w5 w6", "w7 w8 w9", "w10", "w11")


@pytest.mark.parametrize(
    "template", [PLAIN_TEMPLATE, "<bos> " + PLAIN_TEMPLATE, MARKED_TURNS + PROMPT]
)
def test_chats_score_the_assistant_s_turns(metric, gpt2, template):
    """The token that ends a turn is scored, but is no character of the answer; one start token."""
    tokenizer = make_tokenizer(chat_template=template)
    result = metric.compute(
        predictions=[CHAT, CHAT[:2]],
        model=gpt2,
        tokenizer=tokenizer,
        max_length=CONTEXT,
        stride=CONTEXT // 2,
        return_token_scores=True,
        words=True,
    )
    scores = result["token_scores"][0]
    scored = [t for t, nll in zip(scores["tokens"], scores["nll"]) if nll is not None]
    assert scored == ["w7", "w8", "w9", "<eos>", "w11", "<eos>"]
    assert "<bos>" not in scores["tokens"]
    assert result["num_tokens_per_text"] == [6, 4]
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    ids = [token for token in tokenizer(whole)["input_ids"] if token != BOS]
    plan = reference.sliding(len(ids), CONTEXT, CONTEXT // 2, "once")
    expected = reference.window_nlls(gpt2, ids, plan, BOS)
    ours = {n: nll for n, nll in enumerate(scores["nll"]) if nll is not None}
    assert ours == close({n: expected[n] for n in ours})
    characters = len("w7 w8 w9 ") + len("w11 ") + len("w7 w8 w9 ")
    per_character = result["total_nll"] / characters / math.log(2)
    assert result["bits_per_character"] == close(per_character)
    assert [s["words"] for s in result["word_scores"]] == [
        ["w7", "w8", "w9", "w11"],
        ["w7", "w8", "w9"],
    ]


@pytest.fixture
def score(metric, gpt2):
    """Score chats that a template writes out."""

    def compute(template, *chats, **kwargs):
        tokenizer = make_tokenizer(chat_template=template)
        return metric.compute(predictions=list(chats), model=gpt2, tokenizer=tokenizer, **kwargs)

    return compute


@pytest.mark.parametrize(
    "template, chats, message",
    [
        (TURNS, [CHAT[:2], CHAT], r"writes '<\|assistant\|>' into .* at positions 0, 1\. Mark"),
        (PLAIN_TEMPLATE, [CHAT], ""),
        (BRACKETS, [CHAT], ""),
        (THINKING, [CHAT[:2]], ""),
    ],
)
def test_what_is_scored_as_if_the_assistant_had_said_it(score, template, chats, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score(template, *chats)
    said = [str(w.message) for w in caught if "chat template" in str(w.message)]
    assert re.search(message, said[0]) if message else said == []


@pytest.mark.parametrize(
    "template, chats, message",
    [
        (None, [CHAT], "be texts, because the tokenizer has no chat template"),
        (
            PLAIN_TEMPLATE,
            [CHAT, CHAT[:1]],
            "role 'assistant', which are scored, got none at position 1",
        ),
        (PLAIN_TEMPLATE, [CHAT, "w5"], "either texts or chats, .* got 1 chats and 1 texts"),
        (PLAIN_TEMPLATE, [[*CHAT, {"role": "user"}]], "content None in message 4 at position 0"),
        (PLAIN_TEMPLATE, [CHAT, chat_of("w5", "", "w6", "")], "got none at position 1"),
        ("{% for %}", [CHAT], "fails on 4 messages of the chat at position 0 .TemplateSyntaxError"),
        (
            "{{ messages[0].role }}" + PLAIN_TEMPLATE,
            [chat_of("", first="assistant")],
            "on 0 messages",
        ),
        ("{{ messages[-1]['content'] }}", [CHAT], "position 0 up to its message 1 differently"),
        (THINKING, [CHAT[:2], CHAT], "position 1 up to its message 1 differently"),
    ],
)
def test_chats_that_cannot_be_scored(score, template, chats, message):
    with pytest.raises((TypeError, ValueError), match=message):
        score(template, *chats)


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, "<bos> " + PLAIN_TEMPLATE])
def test_a_chat_may_begin_with_the_assistant(score, template):
    chat = chat_of("w5 w6", "w7", "w8", first="assistant")
    result = score(template, chat, return_token_scores=True)
    [scores] = result["token_scores"]
    scored = [token for token, nll in zip(scores["tokens"], scores["nll"]) if nll is not None]
    assert scored == ["w5", "w6", "<eos>", "w8", "<eos>"]


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, TURNS.replace(" <eos>", "") + PROMPT])
def test_an_empty_turn_beside_others(score, template):
    """What ends it is scored, if anything does; the assistant's words are those of the others."""
    ends = "<eos>" in template
    chat = chat_of("w5", "", "w6", "w7 w8")
    result = score(template, chat)
    assert result["num_tokens"] == 2 + 2 * ends
    characters = len(" " + "w7 w8 ") if ends else len("w7 w8")
    bits = result["total_nll"] / math.log(2)
    assert result["bits_per_character"] == pytest.approx(bits / characters)


MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}\n{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    "chat, said",
    [
        (chat_of("w5 w6", "w7 w8", "w9 w10"), [7, 8]),  # its end is dropped: all was scored
        (chat_of("w5", "w7", "w9", " w8", "w10", "w11"), [7, 8, 11]),  # the last two were not
        (chat_of("w7", "w5", "w8", "w6", first="assistant"), [7, 8]),  # of token 0: all was scored
        (chat_of("", "w5", "w8", "w6", first="assistant"), [8]),
    ],
)
@pytest.mark.parametrize("begin", ["", "{%- if true %}{% endif %}", "\n"])
def test_marked_turns_with_white_space_that_the_tokenizer_drops(score, gpt2, chat, said, begin):
    result = score(begin + MARKED, chat)
    ids = [int(word[1:]) for message in chat for word in message["content"].split()]
    nlls = reference.nll(gpt2, [BOS], ids)
    naive = [nll for number, nll in zip(ids, nlls) if number in said]
    assert result["num_tokens"] == len(said)
    assert result["total_nll"] == pytest.approx(sum(naive), rel=1e-5)


def test_the_template_is_in_the_signature_and_what_it_writes_in_the_digest(score):
    """Parts of one corpus under two templates were merged to the number of no run."""
    one, other = (
        score(before + PLAIN_TEMPLATE, chat_of("w5", "w6 w7"), return_totals=True)
        for before in ("", "w9 {{ '' }}")
    )
    assert one["texts_digest"] != other["texts_digest"]
    names = [re.search(r"\|template:(\w{12})\|", result["signature"])[1] for result in (one, other)]
    assert names[0] != names[1]
    with pytest.raises(ValueError, match=f"differ in template \\({names[0]} and {names[1]}\\)"):
        one["totals"] + other["totals"]


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"contexts": ["a"]}, "`contexts` must be a string .* 2, got 1"),
        ({"score_spans": [[(0, 1)], [(0, 9)]]}, r"within the 5 .* position 1, got \(0, 9\)"),
        ({"score_spans": [[(2, 4), (3, 5)], []]}, r"got \(3, 5\)"),
        ({"score_spans": [[(0, 2)], []]}, "token in the scored part, got none at position 1"),
        ({"contexts": "a", "score_spans": [[], []]}, "`contexts` must be left out with `score_sp"),
        ({"boundary": "separate"}, "`boundary` must be left out without `contexts`"),
        ({"contexts": "a", "protocol": "gptq"}, "scores such parts .* got 'gptq'"),
        (
            {"score_spans": [[(0, 2)]] * 2, "protocol": "lm-eval"},
            "scores such parts .* got 'lm-eval'",
        ),
        ({"contexts": "a", "protocol": "lm-eval", "boundary": "separate"}, "has no such setting"),
    ],
)
def test_arguments(measure, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        measure("w3 w4", "w5 w6", **arguments)


def test_the_signature_says_what_was_read(measure):
    def identity(**kwargs):
        result = measure("w3 w4", **kwargs)
        return result["signature"], result["texts_digest"]

    plain, after = identity(), identity(contexts="w5 ")
    assert "|context:" not in plain[0]
    assert "|context:given|boundary:joint|" in after[0]
    others = [
        identity(contexts="w6 "),
        identity(contexts="w5 ", boundary="separate"),
        identity(score_spans=[[(0, 2)]]),
        identity(score_spans=[[(0, 5)]]),
    ]
    assert len({plain, after, *others}) == 6
