"""Chats that templates cannot write, or write in a way of their own: said in a sentence, by chat and turn."""

import math
import re
import warnings

import pytest
import reference
from models import BOS, make_model, make_tokenizer

PROMPT = "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
TURNS = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <eos>\n' }}{% endfor %}"
)
PLAIN = TURNS + PROMPT
# As in Llama 2: the header of an answer is the end of the question, and there is no prompt.
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + ' <eos>' }}{% endif %}{% endfor %}"
)
ALWAYS_PROMPTS = TURNS + "<|assistant|> "
NEEDS_A_FIRST = "{% set first = messages[0]['role'] %}" + PLAIN
PICKY = (
    "{% for m in messages %}{% if m['content'] == 'w9' %}{{ raise_exception('No w9.') }}{% endif %}"
    "{% endfor %}" + PLAIN
)
THINKING = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' }}"
    "{% if m['role'] == 'assistant' and loop.last %}w20 {% endif %}{{ m['content'] + ' <eos>\n' }}"
    "{% endfor %}" + PROMPT
)


def chat_of(*contents, first="user"):
    """A chat in which two take turns."""
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]


CHAT = chat_of("w5 w6", "w7 w8", "w10", "w11")


@pytest.fixture
def score(metric, gpt2):
    """Score chats that a template writes out."""

    def compute(template, *chats, **kwargs):
        tokenizer = make_tokenizer(chat_template=template)
        return metric.compute(predictions=list(chats), model=gpt2, tokenizer=tokenizer, **kwargs)

    return compute


@pytest.mark.parametrize(
    "template", [PLAIN, BRACKETS, THINKING, BRACKETS.replace("m['content'] + ' <", "'w30' + ' <")]
)
def test_nothing_is_said_of_templates_that_write_answers_alone(score, template):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        score(template, CHAT[:2])


@pytest.mark.parametrize(
    "template, chats, message",
    [
        (TURNS, [CHAT], r"writes '<\|assistant\|>' into .* at position 0 \(first: message 1\)"),
        (TURNS, [CHAT[:2], CHAT], r"writes .* at positions 0, 1 \(first: message 1\)"),
        (ALWAYS_PROMPTS, [CHAT[:2]], r"writes ' <eos>\\n<\|assistant\|>' into .* at position 0"),
    ],
)
def test_what_is_scored_as_if_the_assistant_had_said_it(score, template, chats, message):
    with pytest.warns(UserWarning, match=message + r".*with \{% generation %\}"):
        score(template, *chats)


@pytest.mark.parametrize(
    "message, problem",
    [
        ({"role": "assistant", "content": None}, "has the content None. Pass a string, ''"),
        ({"role": "assistant"}, "has the content None. Pass"),
        ({"role": "user", "content": 3}, "has the content 3. Pass"),
        ({"content": "w5"}, "has the role None. Pass one"),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "w5"}]},
            "has its content in parts. Join",
        ),
        ({"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}, "has tool calls"),
    ],
)
def test_messages_that_are_no_text(score, message, problem):
    with pytest.raises(ValueError, match=f"message 2 of the chat at position 1 {problem}"):
        score(PLAIN, CHAT, [*CHAT[:2], message, *CHAT[2:]])


def test_tool_calls_are_written_by_templates_that_know_how(score):
    template = (
        TURNS.replace(
            "m['content'] +", "m['content'] + (m.tool_calls[0] if m.tool_calls else '') +"
        )
        + PROMPT
    )
    called = {"role": "assistant", "content": "", "tool_calls": ["w9 w10"]}
    assert score(template, [CHAT[0], called])["num_tokens"] == len(["w9", "w10", "<eos>"])


@pytest.mark.parametrize(
    "template, chat, message",
    [
        ("{% for %}", CHAT, "fails at message 0 of the chat at position 0 (TemplateSyntaxError: "),
        ("{{ messages[0].x.y }}", CHAT, "at message 0 of the chat at position 0 (UndefinedError: "),
        (PICKY, chat_of("w5", "w6", "w9", "w7"), "fails at message 2 of the chat at position 0 (T"),
        (PICKY, chat_of("w5", "w9"), "(TemplateError: No w9). Change the chat or the template."),
        (
            NEEDS_A_FIRST,
            chat_of("w5", "w6", first="assistant"),
            "fails at message 0 of the chat at position 0 (UndefinedError: list object has no "
            "element 0). The chat begins with the assistant, and",
        ),
    ],
)
def test_templates_that_fail(score, template, chat, message):
    with pytest.raises(ValueError) as refused:
        score(template, chat)
    assert str(refused.value).startswith("`predictions` must be chats that")
    assert message in str(refused.value)


def test_what_a_template_writes_of_the_last_turn_alone(score):
    """As thoughts that are left out of earlier turns: those are written in another way."""
    with pytest.raises(ValueError, match="the chat at position 1 up to its message 1 differently"):
        score(THINKING, CHAT[:2], CHAT)


@pytest.mark.parametrize("template", [PLAIN, "<bos> " + PLAIN])
def test_a_chat_may_begin_with_the_assistant(score, template):
    chat = chat_of("w5 w6", "w7", "w8", first="assistant")
    result = score(template, chat, return_token_scores=True)
    [scores] = result["token_scores"]
    scored = [token for token, nll in zip(scores["tokens"], scores["nll"]) if nll is not None]
    assert scored == ["w5", "w6", "<eos>", "w8", "<eos>"]


@pytest.mark.parametrize("template", [PLAIN, TURNS.replace(" <eos>", "") + PROMPT])
def test_an_empty_turn_beside_others(score, template):
    """What ends it is scored, if anything does; the assistant's words are those of the others."""
    ends = "<eos>" in template
    chat = chat_of("w5", "", "w6", "w7 w8")
    result = score(template, chat)
    assert result["num_tokens"] == 2 + 2 * ends
    characters = len(" " + "w7 w8 ") if ends else len("w7 w8")
    bits = result["total_nll"] / math.log(2)
    assert result["bits_per_character"] == pytest.approx(bits / characters)


@pytest.mark.parametrize("template", [PLAIN, BRACKETS, TURNS.replace(" <eos>", "") + PROMPT])
def test_nothing_but_empty_turns(score, template):
    silent = chat_of("w5", "", "w6", "")
    message = r"only empty turns at position 1: the first is message 1\. Remove"
    with pytest.raises(ValueError, match=message) as refused:
        score(template, CHAT[:2], silent)
    assert refused.value.positions == [1]


def test_a_turn_without_a_token_moves_no_other_s_end(metric, gpt2):
    """White space that a tokenizer drops is a turn of characters, not of tokens."""
    tokenizer = make_tokenizer(chat_template=TURNS.replace(" <eos>", "\u3000") + PROMPT)
    chat = chat_of("w5", "\u2003", "w6", "w7 <eos>")
    result = metric.compute(predictions=[chat], model=gpt2, tokenizer=tokenizer)
    assert result["num_tokens"] == len(["w7", "<eos>"])
    bits = result["total_nll"] / math.log(2)
    assert result["bits_per_character"] == pytest.approx(bits / len("w7 "))


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
@pytest.mark.parametrize("begin", ["", "  ", "{%- if true %}{% endif %}", "\n"])
def test_marked_turns_with_white_space_that_the_tokenizer_drops(score, gpt2, chat, said, begin):
    result = score(begin + MARKED, chat)
    ids = [int(word[1:]) for message in chat for word in message["content"].split()]
    nlls = reference.nll(gpt2, [BOS], ids)
    naive = [nll for number, nll in zip(ids, nlls) if number in said]
    assert result["num_tokens"] == len(said)
    assert result["total_nll"] == pytest.approx(sum(naive), rel=1e-5)


@pytest.mark.parametrize("marked", [True, False])
def test_whether_the_end_of_a_turn_is_scored_is_in_the_digest(metric, marked):
    """Two templates wrote one text, of which one had the end scored: 0.5 nats under equal keys."""
    inside, outside = (
        "{{ m.content }}<eos>{% endgeneration %}",
        "{{ m.content }}{% endgeneration %}<eos>",
    )
    results = []
    for answer in (inside, outside) if marked else (outside, outside):
        template = (
            "{% for m in messages %}{% if m.role == 'assistant' %}w5 {% generation %}"
            + answer
            + "{% else %}w4 {{ m.content }}{% endif %} {% endfor %}"
        )
        results.append(
            metric.compute(
                predictions=[
                    [
                        {"role": "user", "content": "w6 w7"},
                        {"role": "assistant", "content": "w8 w9 w10"},
                    ]
                ],
                model=make_model("llama", max_position_embeddings=64),
                tokenizer=make_tokenizer(chat_template=template),
            )
        )
    one, other = results
    assert (one["num_tokens"] != other["num_tokens"]) == marked
    assert (one["texts_digest"] != other["texts_digest"]) == marked


def test_the_template_is_in_the_signature(score):
    """Parts of one corpus under two templates were merged to the number of no run."""
    one, other = (
        score(before + PLAIN, chat_of("w5", "w6 w7"), return_totals=True)
        for before in ("", "w9 {{ '' }}")
    )
    names = [re.search(r"\|template:(\w{12})\|", result["signature"])[1] for result in (one, other)]
    assert names[0] != names[1]
    with pytest.raises(ValueError, match=f"differ in template \\({names[0]} and {names[1]}\\)"):
        one["totals"] + other["totals"]


def test_a_reference_that_reads_the_same_text_names_its_template(score):
    tokenizer = make_tokenizer(chat_template="w9 " + PLAIN)
    result = score(
        PLAIN,
        chat_of("w5", "w6 w7"),
        reference={"model": make_model("gpt2", seed=1), "tokenizer": tokenizer},
    )
    of_text, of_reference = (
        re.search(r"\|template:\w+", line)[0]
        for line in (result["signature"], result["comparison"]["reference_signature"])
    )
    assert of_text == of_reference
