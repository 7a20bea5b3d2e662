"""From figures that other code computes to the settings that give them."""

import json
import math
import re
import shlex

import pytest
import reference
import transformers
from models import CONTEXT, make_model, make_tokenizer, random_text, save
from test_peers import harness, rolling

from perplexity_sliding import compute, find, finding, layouts
from perplexity_sliding.cli import main as score
from perplexity_sliding.cli import searching
from perplexity_sliding.protocols import detokenize_wikitext

TEXT = f" = Title = \n\n {random_text(50, 1)} . \n {random_text(90, 2)} \n\n = Other = \n{random_text(40, 3)}\n"
OTHER = random_text(110, 4)


@pytest.fixture(scope="module")
def model():
    return make_model("gpt2", seed=5)


@pytest.fixture(scope="module")
def words():
    return make_tokenizer()


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def guide(model, tokenizer, text, stride):
    """Perplexity of the transformers guide, mean of window means."""
    windows = reference.guide_loop(model, ids_of(tokenizer, text), CONTEXT, stride)
    return math.exp(reference.mean(loss for _, loss in windows))


def names(result):
    return [(m["protocol"], m["max_length"], m["stride"], m["layout"]) for m in result["matches"]]


def settings_of(matches):
    """All settings that give a value that matches."""
    return [setting for row in matches for setting in [row, *row["same_value"]]]


@pytest.fixture(scope="module")
def search(model, words):
    return lambda figure, texts, **others: find(
        figure, texts, model=model, tokenizer=words, **others
    )


# --- figures and layouts --------------------------------------------------------------------------


def test_a_figure_is_the_interval_that_rounds_to_it():
    figure = finding.Figure.read("29.41")
    assert (figure.low, figure.high) == pytest.approx((29.405, 29.415), abs=1e-12)
    assert figure.fits(29.405) and not figure.fits(29.415) and not figure.fits(29.4049)
    assert finding.Figure.read("37.50").high == pytest.approx(37.505)
    assert finding.Figure.read(37.5).high == pytest.approx(37.55)
    assert finding.Figure.read(30).low == pytest.approx(29.5)
    assert finding.Figure.read("1e1").high == pytest.approx(15)


@pytest.mark.parametrize(
    ("figure", "texts", "error", "named"),
    [
        *[(figure, [OTHER], ValueError, "figure") for figure in (0, -3, "nan", [], "3,5", None)],
        ("3.5", [], ValueError, "texts"),
        ("3.5", OTHER, TypeError, "texts"),
        (["3.5", "4.5"], [OTHER], ValueError, "2 figures and 1 texts"),
    ],
)
def test_what_is_no_figure_or_no_text_is_refused(search, figure, texts, error, named):
    with pytest.raises(error, match=named):
        search(figure, texts)


def test_layouts():
    text = " = A = \n\n one \n = = B = = \n two\n = C = \n three"
    assert layouts.arrange([text], "each-line") == text.replace("\n\n", "\n").split("\n")
    assert layouts.arrange([text], "each-article") == [
        text[: text.index(" = C")],
        " = C = \n three",
    ]
    rows = [" = A = \n", "", " one \n", " = = B = = \n", " two\n", " = C = \n", " three"]
    assert layouts.arrange([text], "hub-rows-by-blank-line") == ["\n\n".join(rows)]
    assert layouts.arrange([text], "hub-rows") == rows
    assert layouts.arrange(rows, "hub-rows") == rows
    assert layouts.arrange([text], "hub-rows-without-blank") == [row for row in rows if row]
    assert layouts.arrange(rows, "each-article") == layouts.arrange(["".join(rows)], "each-article")
    assert layouts.arrange(["head\n = A = \nb"], "each-article") == ["head\n", " = A = \nb"]
    assert layouts.arrange(["no title"], "each-article") == ["no title"]
    assert layouts.arrange(["a\n\nb\n"], "lines-by-nothing") == ["ab"]
    assert layouts.arrange(["a\n\nb\n"], "lines-by-space") == ["a  b"]
    assert layouts.arrange(["a\n\nb\n"], "without-blank-lines") == ["a\nb"]
    assert layouts.arrange([" a @-@ b ,"], "detokenized") == [" a-b ,"]


# --- against other code ---------------------------------------------------------------------------


@pytest.mark.parametrize("part", [2, 8])
def test_the_guides_figure(search, model, words, part):
    """A stride that is a usual part of the window is tried before layouts that nobody uses."""
    text = " ".join(random_text(90, seed) + "\n" for seed in range(6))
    value = guide(model, words, text, CONTEXT // part)
    result = search(f"{value:.4f}", [text])
    assert names(result)[0] == ("transformers-docs", CONTEXT, CONTEXT // part, "as-is")
    assert result["matches"][0]["average"] == "perplexity"
    assert result["matches"][0]["value"] == pytest.approx(value, rel=1e-5)
    assert math.fsum(match["likelihood"] for match in result["matches"]) == pytest.approx(1)


def test_the_tool_that_is_known_for_an_average_comes_first(search, model, words):
    """Its number was listed under `sliding` and `yarn` before it, in rows of their own."""
    texts = [random_text(9, 6), random_text(12, 7)]
    stock = compute(texts, model=model, tokenizer=words, protocol="stock")["mean_perplexity"]
    [row] = search(f"{stock:.6g}", texts, max_tokens=10**6)["matches"]
    assert (row["protocol"], row["average"]) == ("stock", "mean_perplexity")
    assert {"sliding", "yarn"} <= {other["protocol"] for other in row["same_value"]}


def test_the_figure_of_the_rows_of_the_hub(search, model, words):
    text = "\n".join([random_text(31, 6), "", random_text(40, 7)])
    separated = make_tokenizer()  # whose tokens are words: only the texts' cut shows in the numbers
    lines = [ids_of(separated, line) for line in text.split("\n") if line]
    nlls = [
        reference.token_nlls(model, ids, reference.stock(len(ids), CONTEXT, True), 0)
        for ids in lines
    ]
    value = reference.mean(math.exp(reference.mean(of_text.values())) for of_text in nlls)
    result = search(f"{value:.3f}", [text])
    assert names(result)[0] == ("stock", CONTEXT, CONTEXT, "each-line")
    assert result["matches"][0]["average"] == "mean_perplexity"


@pytest.mark.parametrize("detokenized", [False, True])
def test_the_word_perplexity_of_the_harness(search, model, words, detokenized):
    text = TEXT if detokenized else OTHER
    read = detokenize_wikitext(text) if detokenized else text
    likelihood = sum(rolling(harness(model, words), [read]))
    value = math.exp(-likelihood / len(re.split(r"\s+", text)))
    result = search(f"{value:.5g}", [text], max_tokens=10**6)
    layout = "as-is, detokenized" if detokenized else "as-is"
    assert ("lm-eval", CONTEXT, CONTEXT, layout) == names(result)[0]
    assert result["matches"][0]["average"] == "word_perplexity"


def test_the_harness_reads_articles(search, model, words):
    """Its WikiText task scores page after page."""
    pages = [" = Title = " + TEXT.split(" = Title = ")[1].split(" = Other = ")[0]]
    pages.append(" = Other = " + TEXT.split(" = Other = ")[1])
    assert layouts.arrange([TEXT], "each-article") == pages
    likelihood = sum(rolling(harness(model, words), list(map(detokenize_wikitext, pages))))
    value = math.exp(-likelihood / sum(len(re.split(r"\s+", page)) for page in pages))
    for texts in ([TEXT], TEXT.splitlines(keepends=True)):
        best = search(f"{value:.5g}", texts, max_tokens=10**6)["matches"][0]
        assert best["protocol"] == "lm-eval"
        assert best["layout"] == "each-article, detokenized"


def test_the_blocks_of_the_rows_of_the_hub(search, model):
    """run_clm.py tokenizes each row by itself, and lays the tokens end to end."""
    tokenizer = make_tokenizer(model_max_length=8)
    rows = layouts.hub_rows(TEXT)
    assert "" in rows and "".join(rows).replace("\n", "").strip() != ""
    ids = [ids_of(tokenizer, row) for row in rows]
    blocks = reference.run_clm([len(row) for row in ids], 8, 1000)
    stream = [token for row in ids for token in row]
    nlls = [n for b in blocks for n in reference.window_nlls(model, stream, b, 0).values()]
    value = math.exp(reference.mean(nlls))
    result = find(f"{value:.4f}", [TEXT], model=model, tokenizer=tokenizer)
    assert result["matches"][0]["protocol"] == "run-clm"
    assert result["matches"][0]["value"] == pytest.approx(value, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_what_the_trainer_prints(words, tmp_path, architecture):
    """Some versions divide by the first label of each block too, for all models or for some."""
    pytest.importorskip("accelerate")
    model = make_model(architecture, seed=5)
    ids = ids_of(words, OTHER)
    blocks = [ids[n : n + CONTEXT] for n in range(0, len(ids) - CONTEXT + 1, CONTEXT)]
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True),
        eval_dataset=[{"input_ids": block, "labels": block} for block in blocks],
        data_collator=transformers.default_data_collator,
    )
    loss = trainer.evaluate()["eval_loss"]
    for figure, unit in ((loss, "nats_per_token"), (math.exp(loss), "perplexity")):
        result = find(f"{figure:.4f}", [OTHER], model=model, tokenizer=words)
        best = result["matches"][0]
        assert best["protocol"] == "run-clm" and best["average"] in (unit, f"trainer_{unit}")


def test_several_figures_are_of_one_setting(search, model, words):
    texts = [OTHER, random_text(75, 8)]
    values = [guide(model, words, text, CONTEXT) for text in texts]
    result = search([f"{value:.2f}" for value in values], texts)
    assert names(result)[0] == ("transformers-docs", CONTEXT, CONTEXT, "as-is")
    assert result["matches"][0]["value"] == pytest.approx(values, rel=1e-5)
    one = search(f"{values[0]:.2f}", texts[:1])
    assert result["expected_by_chance"] < one["expected_by_chance"]
    # The figures of the other texts' are of no setting.
    assert search([f"{value:.2f}" for value in values[::-1]], texts)["matches"] == []


# --- the rest of the answer -----------------------------------------------------------------------


def test_a_figure_that_nothing_gives(search):
    above = search("5e9", [OTHER])
    assert above["matches"] == [] and len(above["nearest"]) > 0
    assert "No setting tried rounds to 5e9; perplexities per token are from" in above["conclusion"]


def test_what_costs_too_much_is_named(search):
    little = search("1.2345", [OTHER], max_tokens=700)
    assert little["num_forward_tokens"] <= 700
    assert little["not_tried"] and all(
        step["num_forward_tokens"] > 0 and step["num_settings"] > 0 for step in little["not_tried"]
    )
    two = search(["1.2345", "3.2"], [OTHER, OTHER], max_tokens=1400)
    assert (
        two["not_tried"] and "all figures: a setting not tried (--max-tokens" in two["conclusion"]
    )
    with pytest.raises(ValueError, match="max_tokens"):
        search("1.2345", [OTHER], max_tokens=1)


def test_nearest_others_have_their_difference(search, model, words):
    figure = f"{guide(model, words, OTHER, CONTEXT // 2):.4f}"
    nearest = search(figure, [OTHER])["nearest"]
    ratios = [other["value"] / float(figure) - 1 for other in nearest]
    assert [other["difference"] for other in nearest] == [f"{100 * r:+.2f} %" for r in ratios]
    assert sorted(ratios, key=lambda ratio: abs(math.log1p(ratio))) == ratios


def test_half_of_the_values_are_expected_in_half_of_the_space():
    tried = [{"value": [math.exp(0.001 * n)]} for n in range(2000)]
    figure = finding.Figure("x", math.exp(1.0), math.exp(1.01), 2)
    assert finding.chance(tried, [figure]) == pytest.approx(10, rel=0.02)


def test_a_certain_match_ends_the_search_unless_tokens_are_given(search, model, words):
    figure = f"{guide(model, words, OTHER, CONTEXT // 2):.3f}"
    short, whole = search(figure, [OTHER]), search(figure, [OTHER], max_tokens=10**6)
    assert short["not_tried"] and not whole["not_tried"]
    assert short["num_forward_tokens"] < whole["num_forward_tokens"]
    assert names(short)[0] == names(whole)[0]
    assert short["expected_by_chance"] < 0.01


def test_progress_grows_and_ends(search):
    seen = []
    search("1.2345", [OTHER], callback=seen.append)
    shares = [progress.done / progress.total for progress in seen]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] <= 1
    assert len({progress.total for progress in seen}) == 1


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_folder(model, tmp_path_factory):
    return save(tmp_path_factory.mktemp("find") / "tiny", model, make_tokenizer())


def run_command(command, capsys):
    """Run a printed command in this process; return what it prints as JSON."""
    for part in command.split(" && "):
        part, _, target = part.partition(" > ")
        argv = shlex.split(part)
        if argv[1] == "-m":
            assert searching.print_layout(argv[3:]) == 0
            with open(target, "w") as file:
                file.write(capsys.readouterr().out)
        else:
            assert argv[:2] == ["python", "score.py"]
            assert score.main([*argv[2:], "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)["corpus"]


def value_in(printed, average):
    if average.endswith("byte_perplexity"):
        original = "original_" * average.startswith("original")
        return 2 ** printed[f"bits_per_{original}byte"]
    if average in ("nats_per_token", "bits_per_token"):
        return math.log(printed["perplexity"]) / (1 if average[0] == "n" else math.log(2))
    if average.startswith("trainer_"):
        block = printed["max_length"]
        perplexity = printed["perplexity"] ** ((block - 1) / block)
        return math.log(perplexity) if average == "trainer_nats_per_token" else perplexity
    return printed[average]


def test_printed_commands_repeat_the_values(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    by_command, searches = {}, []
    monkeypatch.setattr(finding, "list_matches", lambda search: searches.append(search) or [])
    find("1.2345", [TEXT], model_id=tiny_folder, files=[["a.txt"]], max_tokens=10**6)
    for entry in searches[0].tried:
        by_command.setdefault(entry["command"][0], []).append(entry)
    assert len(by_command) > 100
    for command in sorted(by_command)[::13]:
        printed = run_command(command, capsys)
        for entry in by_command[command]:
            value = value_in(printed, entry["average"])
            assert value == pytest.approx(entry["value"][0], rel=1e-5), (command, entry)
            assert printed["protocol"] == entry["protocol"]
            for name in ("max_length", "stride"):
                assert printed[name] == entry[name]


def test_one_setting_explains_two_models(tiny_folder, words, tmp_path):
    other = make_model("gpt2", seed=6)
    folder = save(tmp_path / "other", other, words)
    models = [tiny_folder, folder]
    values = [guide(make_model("gpt2", seed=seed), words, OTHER, CONTEXT) for seed in (5, 6)]
    figures = [f"{value:.3f}" for value in values]
    result = find(figures, [OTHER], model_id=models)
    assert names(result)[0] == ("transformers-docs", CONTEXT, CONTEXT, "as-is")
    first = result["matches"][0]
    assert first["value"] == pytest.approx(values, rel=1e-5)
    assert all(model in command for model, command in zip(models, first["command"]))
    assert find(figures[::-1], [OTHER], model_id=models)["matches"] == []
    with pytest.raises(ValueError, match="3 figures and 2 models"):
        find([*figures, "3.2"], [OTHER], model_id=models)


def test_the_command_line(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(OTHER)
    value = compute([OTHER], model_id=tiny_folder, protocol="gptq")["perplexity"]
    find_it = ["a.txt", "--model", tiny_folder, "--quiet", "--find", f"{value:.4f}"]
    assert score.main([*find_it, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"figure", "matches", "nearest", "num_tried", "expected_by_chance"} <= set(result)
    assert "gptq" in [match["protocol"] for match in settings_of(result["matches"])]
    assert score.main(find_it) == 0
    printed = capsys.readouterr().out
    assert (
        "gptq" in printed and "by chance" in printed and result["matches"][0]["command"] in printed
    )


def test_the_command_has_the_arguments_of_loading(tiny_folder, tmp_path, monkeypatch, capsys):
    """Without them it gave the number of another model: 417 for 407."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(OTHER)
    other = make_model("gpt2", seed=9)
    save(tmp_path / "m" / "inner", other, make_tokenizer())
    save(tmp_path / "m", make_model("gpt2"), make_tokenizer())
    value = compute([OTHER], model=other, tokenizer=make_tokenizer(), protocol="lm-eval")
    loading = ["--model", "m", "--model-kwargs", '{"subfolder": "inner", "token": "hf_secret"}']
    figure = f"{value['perplexity']:.4f}"
    assert score.main(["a.txt", *loading, "--quiet", "--find", figure, "--json"]) == 0
    match = json.loads(capsys.readouterr().out)["matches"][0]
    assert "hf_secret" not in match["command"]
    printed = run_command(match["command"], capsys)
    assert value_in(printed, match["average"]) == pytest.approx(match["value"])


def test_the_rows_of_a_table_are_the_texts(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [random_text(40, 11), random_text(60, 12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"line": r}) + "\n" for r in rows))
    value = compute(rows, model_id=tiny_folder, protocol="stock")["mean_perplexity"]
    table = ["rows.jsonl", "--text-column", "line", "--model", tiny_folder]
    assert score.main([*table, "--quiet", "--find", f"{value:.4f}", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["matches"][0]
    found = [first[name] for name in ("protocol", "layout", "average")]
    assert found == ["stock", "as-is", "mean_perplexity"]
    assert run_command(first["command"], capsys)["mean_perplexity"] == pytest.approx(value)
