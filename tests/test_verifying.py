"""A stored result comes out again, or it is said what does not."""

import json
import re

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import main, verifying
from perplexity_sliding.protocols import PROTOCOLS


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(random_text(40))
    return path


@pytest.fixture
def stored(call, text, tmp_path):
    """A result at settings that are not the default ones."""
    path = tmp_path / "result.json"
    call(text, "--format=json", "--max-length=12", "--stride=5", f"--output={path}")
    return path


def test_a_result_comes_out_again(call, stored, text):
    """With the window and the stride that it was measured at."""
    outcome = call("--verify", stored, text)
    assert outcome.code == 0
    *parts, others, not_compared, verdict = outcome.out.splitlines()
    assert [line.split("  ")[-1].strip() for line in parts] == ["the same"] * 6
    assert re.fullmatch(r"others +the same: \d\d fields", others)
    assert "seconds, tokens_per_second, peak_memory_bytes" in not_compared
    assert verdict == "verified"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_of_each_protocol_comes_out_again(call, stored, protocol, tmp_path):
    """Settings that a protocol does not let one choose were taken for chosen ones, and refused."""
    texts = [tmp_path / f"{number}.txt" for number in range(30)]
    for number, path in enumerate(texts):
        path.write_text(random_text(40, seed=number))
    assert call(*texts, "--format=json", f"--protocol={protocol}", f"--output={stored}").code == 0
    outcome = call("--verify", stored, *texts)
    assert outcome.out.endswith("\nverified\n"), outcome.err


def edited(path, **changes):
    written = json.loads(path.read_text())
    written["corpus"] |= changes
    path.write_text(json.dumps(written))
    return path


def changed_lines(outcome):
    assert outcome.code == 1
    *lines, verdict = outcome.out.splitlines()
    assert verdict == "not verified"
    names = [line.split("  ")[0] for line in lines if "differs" in line]
    return [name for name in names if name in verifying.PARTS]


def altered(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 1.01 * value + 0.001
    return f"more{value}"


def leaves(value, place=()):
    """Yield the keys that lead to each number and word."""
    if not isinstance(value, dict | list):
        yield place
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(item, (*place, key))


def test_names_and_options_that_differ_are_not_compared(call, stored, text):
    """They counted as the same."""
    written = json.loads(stored.read_text())
    written["files"][0]["name"] = "another.txt"
    written["options"]["stride"] = 7
    stored.write_text(json.dumps(written))
    outcome = call("--verify", stored, text, "--stride=5")
    assert outcome.code == 0
    assert re.search(
        r"^not compared +files\.0\.name, .*seconds, .*, options\.stride: each", outcome.out, re.M
    )


def test_each_field_counts(call, text, tmp_path):
    """17 of them could be edited, and the result was said to be verified."""
    path = tmp_path / "result.json"
    call(text, "--json", "--words", f"--output={path}")
    written = json.loads(path.read_text())
    assert verifying.compare(written, written).is_verified
    uncounted = ("name", *verifying.COSTS)
    # Options are what is run again, not what comes out.
    places = [p for p in leaves(written) if p[-1] not in uncounted and p[0] != "options"]
    assert len(places) > 150
    for *folder, key in places:
        edited = json.loads(path.read_text())
        holder = edited
        for step in folder:
            holder = holder[step]
        holder[key] = altered(holder[key])
        outcome = verifying.compare(edited, written)
        place = ".".join(map(str, [*folder, key]))
        assert list(outcome.differing) == [place.removeprefix("corpus.")]


def test_an_edit_of_any_field_is_said(call, stored, text):
    outcome = call("--verify", edited(stored, bits_per_byte=1.0, word_perplexity=20.5), text)
    assert outcome.code == 1
    assert "\nbits_per_byte  differs: 1 and " in outcome.out
    assert "\nword_perplexity  differs: 20.5 and " in outcome.out


def test_a_field_that_is_not_repeated_is_named(call, text, tmp_path):
    path = tmp_path / "result.json"
    call(text, "--json", "--tokens", f"--output={path}")
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written["corpus"]))  # as Python has it
    outcome = call("--verify", path, text)
    assert outcome.code == 1
    assert "\nnot repeated  token_scores: pass the options" in outcome.out
    assert call("--verify", path, text, "--tokens").out.endswith("\nverified\n")


def test_the_field_of_a_signature_that_differs_is_named(call, stored, text):
    signature = json.loads(stored.read_text())["corpus"]["signature"]
    changed = edited(stored, signature=signature.replace("attention:sdpa", "attention:eager"))
    outcome = call("--verify", changed, text)
    assert outcome.out.splitlines()[0] == "signature     differs: attention eager and sdpa"


def test_the_model_is_that_of_the_result(stored, text, capsys, folder):
    """The bundled one was scored, and said to differ."""
    assert main.main(["--verify", str(stored), str(text), "-q"]) == 0
    assert capsys.readouterr().out.endswith("\nverified\n")


def test_a_model_that_is_not_here_is_asked_for(stored, text, capsys, tmp_path):
    """A folder that has moved, and a result in Python, which does not say where the folder is."""
    written = json.loads(stored.read_text())
    written["options"]["model_id"] = [str(tmp_path / "moved")]
    stored.write_text(json.dumps(written))
    assert main.main(["--verify", str(stored), str(text)]) == 2
    assert "moved, which does not exist here: pass its path as --model." in capsys.readouterr().err
    stored.write_text(json.dumps(written["corpus"]))
    assert main.main(["--verify", str(stored), str(text)]) == 2
    assert "is a result of the model tiny: pass its path as --model." in capsys.readouterr().err


def test_another_model_in_the_folder_differs(call, stored, text, tmp_path, capsys):
    """A folder is pinned by the digest of its weights."""
    other = save(tmp_path / "tiny", make_model("gpt2", seed=5), make_tokenizer())
    written = json.loads(stored.read_text())
    written["options"]["model_id"] = [other]
    stored.write_text(json.dumps(written))
    assert main.main(["--verify", str(stored), str(text), "-q"]) == 1
    assert re.search(r"^signature +differs: revision \S+ and \S+$", capsys.readouterr().out, re.M)


def test_the_commit_of_a_model_of_the_hub_is_loaded(monkeypatch, stored):
    """The signature has the first digits of it."""
    import argparse
    from types import SimpleNamespace

    commits = [SimpleNamespace(commit_id=c * 40) for c in "9a0"]
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_commits", lambda self, name: commits)
    result = json.loads(stored.read_text())["corpus"] | {"model": "some/model"}
    result["signature"] = f"model:some/model|revision:{'a' * 12}.0123456789ab|protocol:sliding"
    nothing = dict.fromkeys(("protocol", "max_length", "stride", "add_start_token", "separator"))
    nothing |= dict.fromkeys(("carry", "detokenize", "model_id", "model_kwargs", "dataset"))
    args = argparse.Namespace(**nothing, files=["a.txt"], verify="result.json")
    verifying.take_options({"corpus": result}, args, ())
    assert args.model_id == ["some/model"]
    assert args.model_kwargs == {"revision": "a" * 40}


SETTINGS = [
    ["--protocol=sliding,lm-eval"],
    ["--protocol=all"],
    ["--max-length=16,8", "--stride=4"],
    ["--separator= ", "--max-length=9"],
    ["--detokenize=wikitext"],
    ["--detokenize=wikitext", "--protocol=lm-eval"],
    ["--words"],
    ["--tokens", "--num-alternatives=2"],
    ["--context-lengths=4,8"],
    ["--columns=text", "--stride=8,4"],
]


@pytest.mark.parametrize("argv", SETTINGS, ids=" ".join)
def test_the_settings_are_those_of_the_result(call, text, tmp_path, argv):
    path, other = tmp_path / "result.json", tmp_path / "other.txt"
    other.write_text(random_text(30, 3))
    assert call(text, other, "--json", f"--output={path}", *argv).code in (0, 2)
    outcome = call("--verify", path, text, other)
    assert outcome.out.endswith("\nverified\n"), outcome.out + outcome.err


@pytest.mark.parametrize("argv", [["--separator= "], ["--detokenize=wikitext"]])
def test_the_settings_of_a_result_in_python(call, text, tmp_path, argv):
    """They are in its signature."""
    path, other = tmp_path / "result.json", tmp_path / "other.txt"
    other.write_text(random_text(30, 3))
    written = call(text, other, "--json", *argv).json["corpus"]
    path.write_text(json.dumps(written))
    outcome = call("--verify", path, text, other)
    assert outcome.out.endswith("\nverified\n"), outcome.out + outcome.err


def test_a_state_that_is_carried_is_taken(call, text, tmp_path):
    recurrent, path = (
        save(tmp_path / "m", make_model("mamba"), make_tokenizer()),
        tmp_path / "r.json",
    )
    assert call(text, "--json", "--carry", f"--output={path}", model=recurrent).code == 0
    assert "carry:" in path.read_text()
    written = json.loads(path.read_text())
    for stored in (written, written["corpus"]):  # of the command line, and of Python
        path.write_text(json.dumps(stored))
        outcome = call("--verify", path, text, model=recurrent)
        assert outcome.out.endswith("\nverified\n"), outcome.out + outcome.err


def test_columns_of_a_table_are_taken(call, tmp_path):
    table, path = tmp_path / "table.csv", tmp_path / "result.json"
    table.write_text(f"prompt,answer\n{random_text(5)},{random_text(9, 1)}\n" * 2)
    argv = ("--text-column=answer", "--context-column=prompt", "--boundary=separate")
    argv += ("--context-separator= ",)
    assert call(table, "--json", f"--output={path}", *argv).code == 0
    assert call("--verify", path, table).out.endswith("\nverified\n")


@pytest.mark.parametrize("more", [["--protocol=lm-eval,gptq"], []], ids=["grid", "models"])
def test_several_models_come_out_again(call, text, tmp_path, more):
    """And where one number of one of them was edited, it is said which."""
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    path = tmp_path / "result.json"
    call(text, f"--model={other}", "--json", f"--output={path}", *more)
    written = json.loads(path.read_text())
    assert call("--verify", path, text, model=other).code != 0, "two models were scored"
    verify = ["--verify", str(path), str(text), "-q"]
    assert main.main(verify) == 0
    written["measurements" if more else "models"][-1]["total_nll"] += 0.1
    path.write_text(json.dumps(written))
    assert main.main(verify) == 1


def test_a_comparison_comes_out_again(call, text, tmp_path, capsys):
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    path = tmp_path / "result.json"
    call(text, f"--reference={other}", "--json", f"--output={path}")
    assert call("--verify", path, text).out.endswith("\nverified\n")
    written = json.loads(path.read_text())
    written["models"][0]["comparison"]["kl"] *= 1.01
    path.write_text(json.dumps(written))
    outcome = call("--verify", path, text)
    assert outcome.code == 1 and "comparison.kl  differs" in outcome.out


@pytest.mark.parametrize(
    "argv",
    [
        ["--add-start-token=false"],  # False and 0 were not stored
        ["--reference", "--margin=0"],
        ["--reference", "--reference-dtype=bfloat16"],
        ["--protocol=all", "--max-length=8"],  # where one replaces the first token of each window
    ],
    ids=" ".join,
)
def test_what_was_chosen_is_chosen_again(call, text, tmp_path, argv):
    model = save(tmp_path / "model", make_model("gpt2"), make_tokenizer(adds_bos=True))
    argv = [f"--reference={model}" if option == "--reference" else option for option in argv]
    path = tmp_path / "result.json"
    assert call(text, "--json", f"--output={path}", *argv, model=model).code in (0, 1)
    assert call("--verify", path, text, model=model).out.endswith("\nverified\n")


def test_a_reference_in_half_precision_may_round_as_that(call, text, tmp_path):
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    path = tmp_path / "result.json"
    call(text, f"--reference={other}", "--reference-dtype=bfloat16", "--json", f"--output={path}")
    written = json.loads(path.read_text())
    written["models"][0]["comparison"]["kl"] *= 1.005
    path.write_text(json.dumps(written))
    assert call("--verify", path, text).out.endswith("\nverified\n")
    written["models"][0]["comparison"]["worst_tokens"][0]["text"] = "another"
    path.write_text(json.dumps(written))
    assert "worst_tokens.0.text  differs" in call("--verify", path, text).out


def test_other_versions_are_named_where_the_numbers_agree(call, stored, text):
    result = json.loads(stored.read_text())["corpus"]
    signature = re.sub(r"torch:.*", "torch:2.4.0", result["signature"])
    short = re.sub("[^|]*$", "0123456789ab", result["signature_short"])
    outcome = call("--verify", edited(stored, signature=signature, signature_short=short), text)
    assert outcome.code == 0
    assert re.search(r"^versions +other ones: torch 2\.4\.0 and \S+$", outcome.out, re.M)
    assert outcome.out.endswith("\nverified\n")


def test_secrets_are_not_stored(call, text):
    argv = ("--json", '--model-kwargs={"revision": "main", "token": "hf_secret"}')
    outcome = call(text, *argv)
    assert outcome.json["options"]["model_kwargs"] == {"revision": "main"}
    assert "hf_secret" not in outcome.out


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"stride": [5]}, "a whole number of at least 1 as stride, got [5]"),
        ({"max_length": True}, "a whole number of at least 1 as max_length, got True"),
        ({"add_start_token": 1}, "true, false, once, every or replace as add_start_token, got 1"),
        ({"protocol": "nope"}, "as protocol, got 'nope'"),
        ({"total_nll": 10**400}, "a number as total_nll, got 1000"),
    ],
    ids=str,
)
def test_what_no_run_has(call, stored, text, changes, said):
    """A list of one stride was verified; the others ended in a traceback."""
    outcome = call("--verify", edited(stored, **changes), text)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_a_number_past_all_floats_differs(call, stored, text):
    outcome = call("--verify", edited(stored, bits_per_byte=10**400), text)
    assert (outcome.code, "Traceback" in outcome.err) == (1, False)
    assert "bits_per_byte  differs: 1000" in outcome.out


@pytest.mark.parametrize(
    "option", ["--output=new.json", "--format=csv", "--json", "--fail-above=1"]
)
def test_what_verifying_does_not_do_is_refused(call, stored, text, option):
    """A gate beside it was open, whatever the number."""
    outcome = call("--verify", stored, text, option)
    assert outcome.code == 2
    assert "--verify and --" in outcome.err


@pytest.mark.parametrize("option", ["--find=66.08", "--merge"])
def test_another_task_is_not_refused_for_the_settings_of_the_result(call, stored, text, option):
    """--find was said not to go with --stride, which the command did not have."""
    outcome = call(text, f"--verify={stored}", option)
    assert outcome.code == 2
    assert "--verify and --find or --merge cannot be combined" in outcome.err


def test_another_text(call, stored, text):
    text.write_text(random_text(40, seed=1))
    assert changed_lines(call("--verify", stored, text)) == [
        "texts_digest",
        "total_nll",
        "perplexity",
    ]


def test_another_model(call, stored, text, tmp_path):
    other = save(tmp_path / "tiny", make_model("gpt2", seed=5), make_tokenizer())
    outcome = call("--verify", stored, text, model=other)
    assert changed_lines(outcome) == ["signature", "probe", "total_nll", "perplexity"]


def test_code_that_no_signature_shows(call, stored, text, monkeypatch):
    import torch

    plain = torch.layer_norm
    monkeypatch.setattr(torch, "layer_norm", lambda *args, **kwargs: 1.01 * plain(*args, **kwargs))
    assert changed_lines(call("--verify", stored, text)) == ["probe", "total_nll", "perplexity"]


def test_a_number_that_was_edited(call, stored, text):
    changed = edited(stored, total_nll=json.loads(stored.read_text())["corpus"]["total_nll"] + 0.1)
    outcome = call("--verify", changed, text)
    assert changed_lines(outcome) == ["total_nll"]
    assert " nats\n" in outcome.out


@pytest.mark.parametrize("number", [19.5, -1.0, None])
def test_a_perplexity_that_was_edited(call, stored, text, number):
    """It was not compared, and the rest was said to be verified."""
    assert changed_lines(call("--verify", edited(stored, perplexity=number), text)) == [
        "perplexity"
    ]


@pytest.mark.parametrize("name", ["perplexity", "probe", "num_tokens"])
def test_what_is_no_number(call, stored, text, name):
    outcome = call("--verify", edited(stored, **{name: "much"}), text)
    assert outcome.code == 2
    assert f"must have a number as {name}, got 'much'." in outcome.err


def test_what_is_no_name(call, stored, text):
    outcome = call("--verify", edited(stored, protocol=["sliding"]), text)
    assert outcome.code == 2
    assert "as protocol, got ['sliding']." in outcome.err


def test_a_key_that_is_there_twice(call, stored, text):
    """The last one counted; readers may see the first."""
    written = stored.read_text()
    stored.write_text(written.replace('"perplexity":', '"perplexity": 1.5, "perplexity":'))
    outcome = call("--verify", stored, text)
    assert outcome.code == 2
    assert "the key 'perplexity' twice" in outcome.err


@pytest.mark.parametrize("content", ["{", "[1]", '{"corpus": {"perplexity": 3}}'])
def test_what_is_no_result(call, stored, text, content):
    stored.write_text(content)
    outcome = call("--verify", stored, text)
    assert outcome.code == 2
    assert "--verify=" in outcome.err


def test_parts_that_share_a_context_are_verified_as_one_run(call, tmp_path):
    """Tokens that are read once for several texts are read again in each part: that refused the result."""
    rows = [{"context": random_text(9), "text": f" {random_text(5, seed=n)}"} for n in range(4)]
    table, merged = tmp_path / "table.jsonl", tmp_path / "merged.json"
    table.write_text("\n".join(map(json.dumps, rows)))
    parts = [tmp_path / f"{number}.json" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        call(table, "--context-column=context", f"--part={number}/2", f"--output={part}")
    call("--merge", *parts, "--format=json", f"--output={merged}")
    outcome = call("--verify", merged, table)
    assert outcome.out.endswith("\nverified\n")
    assert re.search("^not compared .*num_forward_tokens", outcome.out, re.M)


@pytest.mark.parametrize("name, counts", [("wikitext", False), ("moses", False), ("moses", True)])
def test_prose_of_a_detokenizer(call, text, metric, tmp_path, folder, name, counts):
    """A result in Python names its detokenizer; its texts are the prose, unless words were counted before."""
    prose = text.read_text()
    number = len(prose.split()) + 3
    result = metric.compute(
        predictions=[prose],
        model_id=folder,
        detokenizer=name,
        **({"word_counts": [number]} if counts else {}),
    )
    path = tmp_path / "python.json"
    path.write_text(json.dumps(result))
    more = [f"--word-counts={number}"] if counts else []
    assert call("--verify", path, text, *more, model=folder).out.endswith("\nverified\n")


def test_an_address_is_no_missing_folder(stored, text, capsys):
    """A result of a served model named its address, and was said not to exist here."""
    written = json.loads(stored.read_text())
    written["options"] |= {"model_id": ["http://127.0.0.1:9/v1"], "model_kwargs": {"retries": 0}}
    stored.write_text(json.dumps(written))
    assert main.main(["--verify", str(stored), str(text)]) == 2
    error = capsys.readouterr().err
    assert "does not exist here" not in error and "127.0.0.1:9" in error


@pytest.mark.parametrize(
    "name, change",
    [("perplexity", 1.00035), ("word_perplexity", 1.00035), ("scored_share", 1.00005)],
)
def test_more_than_the_stated_tolerance(call, stored, text, name, change):
    """A perplexity could differ by its logarithm as much more: by 4 % in bfloat16."""
    value = json.loads(stored.read_text())["corpus"][name]
    outcome = call("--verify", edited(stored, **{name: change * value}), text)
    assert re.search(f"^{name} +differs", outcome.out, re.M)
    smaller = value * (1 + (change - 1) / 50) if name != "scored_share" else value
    assert call("--verify", edited(stored, **{name: smaller}), text).code == 0


def test_a_comparison_from_python(call, text, metric, tmp_path, folder):
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    result = metric.compute(predictions=[text.read_text()], model_id=folder, reference=other)
    path = tmp_path / "python.json"
    path.write_text(json.dumps(result))
    outcome = call("--verify", path, text, f"--reference={other}", model=folder)
    assert outcome.out.endswith("\nverified\n")
    outcome = call("--verify", path, text, model=folder)
    assert outcome.code == 2 and "is a comparison with other: pass it as --reference" in outcome.err
    result["comparison"]["kl"] *= 1.01
    path.write_text(json.dumps(result))
    outcome = call("--verify", path, text, f"--reference={other}", model=folder)
    assert "comparison.kl  differs" in outcome.out


def test_what_is_said_of_equal_models_does_not_depend_on_rounding(call, tmp_path, folder):
    """Other code for attention: p-values and the tokens that differ most changed with the batch."""
    path, text = tmp_path / "result.json", tmp_path / "long.txt"
    text.write_text(random_text(300))
    eager = '--model-kwargs={"attn_implementation": "eager"}'
    call(text, f"--reference={folder}", eager, "--json", f"--output={path}", model=folder)
    written = json.loads(path.read_text())
    pair = written["models"][0]["comparison"]
    assert 0 < abs(pair["perplexity_ratio"]["ratio"] - 1) < 1e-6
    assert pair["verdict"] == "no clear difference"
    assert pair["summary"].startswith("No difference between the model and the reference:")
    assert pair["perplexity_ratio"]["pvalue"] == 1.0
    assert pair["kl_largest_part"] is None and pair["worst_tokens"] == []
    verify = ("--verify", path, text, "--batch-size=1")
    assert call(*verify, model=folder).out.endswith("\nverified\n")
    for name, value in {
        "verdict": "worse",
        "summary": "It is worse.",
        "kl_largest_part": 0.9,
    }.items():
        path.write_text(
            json.dumps(
                {
                    "models": [{**written["models"][0], "comparison": pair | {name: value}}],
                    "options": written["options"],
                }
            )
        )
        assert f"comparison.{name}  differs" in call(*verify, model=folder).out


def test_names_that_were_swapped_are_said(call, text, tmp_path):
    """Each number stood under the name of the other model."""
    other = save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())
    path = tmp_path / "result.json"
    call(text, f"--model={other}", "--json", f"--output={path}")
    written = json.loads(path.read_text())
    one, two = written["models"]
    one["name"], two["name"] = two["name"], one["name"]
    path.write_text(json.dumps(written))
    assert main.main(["--verify", str(path), str(text), "-q"]) == 1
