"""Turns of long chats, found by where the contents stand: as by writing out every beginning."""

import pytest
from models import make_tokenizer
from test_chats import ALWAYS_PROMPTS, BRACKETS, PLAIN, THINKING, TURNS, chat_of

from perplexity_sliding.plan import chats as module

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
NUMBERED = PLAIN.replace("' + m['role']", "' + loop.index | string + m['role']").replace(
    "'<|assistant|> '", "'<|' + (messages | length + 1) | string + 'assistant|> '"
)
WITHOUT_THOUGHTS = PLAIN.replace(
    "m['content'] +", "(m['content'] if loop.last else m['content'].split('</think>')[-1]) +"
)
TEMPLATES = {
    "plain": PLAIN,
    "no prompt": TURNS,
    "no ends": TURNS.replace(" <eos>", ""),
    "nothing between": PLAIN.replace("<eos>\n", ""),
    "brackets": BRACKETS,
    "prompts": ALWAYS_PROMPTS,
    "ChatML": CHATML,
    "Llama 2": LLAMA_2,
    "Llama 3": LLAMA_3,
    "Mistral": MISTRAL,
    "Gemma": GEMMA,
    "Zephyr": ZEPHYR,
    "trims answers alone": CHATML.replace(
        "m['content']", "(m['content'].strip() if m['role'] == 'assistant' else m['content'])"
    ),
    "trims the left": CHATML.replace("m['content']", "m['content'].lstrip()"),
    "capitals": CHATML.replace("m['content']", "m['content'].upper()"),
    "twice": CHATML.replace("m['content']", "m['content'] + m['content']"),
    "no empty turns": "{% for m in messages if m['content'] %}" + PLAIN.split("%}", 1)[1],
    "numbered": NUMBERED,
    "the last thinks": THINKING,
    "earlier thoughts": WITHOUT_THOUGHTS,
    "prompts otherwise later": PLAIN.replace(
        "{{ '<|assistant|> '",
        "{{ ('<deep> ' if messages | length == 21 else '') + '<|assistant|> '",
    ),
    "begins the answer": PLAIN.replace("'<|assistant|> '", "'<|assistant|> w9'"),
    "a sentinel": PLAIN.replace("<|assistant|> '", f"<|assistant|> {module.SENTINEL[0]}'"),
    "counts": PLAIN.replace("m['content'] +", "m['content'] + (messages | length) | string +"),
}
CONTENTS = {
    "words": [f"w{n} w{n + 1}" for n in range(24)],
    "the same": ["w5", "w7"] * 12,
    "white space": [(" w3", "w5 ", "\nw7\n", "w8  \n", "w9")[n % 5] for n in range(24)],
    "empty": [("w3", "", " ", "w5 w6", "w7")[n % 5] for n in range(24)],
    "thoughts": [f"w{n}" if n % 2 == 0 else f"w9</think>w{n}" for n in range(24)],
    "begun": [f"w9{n}" if n != 11 else "w8" for n in range(24)],
    "templates' own": [("<|im_start|>assistant\n", "<eos>\n", "[/INST]")[n % 3] for n in range(24)],
    "sentinels' own": ["".join(module.SENTINEL), "0".join(module.SENTINEL)] * 12,
}
SYSTEM = {"role": "system", "content": "w40 w41"}


def naive_spans(tokenizer, chat):
    """Write out every beginning; None where one is not that of the whole."""

    def write(messages, prompts=False):
        [text] = tokenizer.apply_chat_template(
            [messages], tokenize=False, add_generation_prompt=prompts
        )
        return text

    whole, spans = write(chat), []
    for turn, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before, after = write(chat[:turn], prompts=True), write(chat[: turn + 1]).rstrip()
        if not whole.startswith(after):
            return None
        if after.startswith(before):
            spans.append((len(before), len(after)))
        elif after != before.rstrip():
            return None
    return [(begin, end) for begin, end in spans if begin < end]


@pytest.mark.filterwarnings("ignore:The chat template ignores")
@pytest.mark.parametrize("template", TEMPLATES)
def test_turns_are_those_of_every_beginning_written_out(template):
    tokenizer = make_tokenizer(chat_template=TEMPLATES[template])
    for name, contents in CONTENTS.items():
        for chat in (chat_of(*contents), [SYSTEM, *chat_of(*contents)]):
            try:
                expected = naive_spans(tokenizer, chat)
            except Exception:  # of the template
                expected = None
            if expected is None:
                with pytest.raises(ValueError, match="position 0"):
                    module.write_chats(tokenizer, [chat])
            else:
                assert module.write_chats(tokenizer, [chat])[1] == [expected], name


def test_roles_in_any_order():
    tokenizer = make_tokenizer(chat_template=CHATML)
    roles = [
        "user", "assistant", "assistant", "tool", "assistant", "user", "user", "assistant",
        "system", "assistant",
    ]  # fmt: skip
    chat = [{"role": role, "content": f"w{n}"} for n, role in enumerate(roles * 4)]
    assert module.write_chats(tokenizer, [chat])[1] == [naive_spans(tokenizer, chat)]


@pytest.mark.parametrize("template", [CHATML, LLAMA_2, LLAMA_3, MISTRAL, GEMMA, ZEPHYR, TURNS])
@pytest.mark.filterwarnings("ignore:The chat template ignores")
def test_twice_as_long_a_chat_takes_twice_the_writing(template, monkeypatch):
    tokenizer = make_tokenizer(chat_template=template)
    written, write = [], module._write

    def counting(tokenizer, messages, prompts):
        text = write(tokenizer, messages, prompts)
        written.append(len(text))
        return text

    monkeypatch.setattr(module, "_write", counting)
    totals = []
    for number in (100, 200):
        written.clear()
        module.write_chats(tokenizer, [chat_of(*["w5 w6", " w7 w8 "] * (number // 2))])
        totals.append(sum(written))
    assert totals[1] < 2.2 * totals[0]
