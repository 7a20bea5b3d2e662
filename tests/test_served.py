"""A served model gives the numbers of transformers, in every form that servers speak."""

import pytest
from fake_engines import FakeServer, running
from models import CONTEXT, make_tokenizer, random_text, save

TEXTS = [random_text(70), random_text(9, 1), random_text(33, 2)]
FORMS = ("vllm", "openai", "sglang")


@pytest.fixture(scope="module")
def servers(gpt2):
    """The address of a truthful server in each form."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        tokenizer = make_tokenizer()
        yield {
            form: stack.enter_context(running(FakeServer(gpt2, tokenizer, (form,))))
            for form in FORMS
        }


@pytest.fixture
def both(metric, gpt2, tokenizer, servers):
    """Measure under a server and in transformers."""

    def measure(form="vllm", predictions=TEXTS, **arguments):
        arguments |= {"predictions": predictions, "tokenizer": tokenizer}
        served = metric.compute(model_id=servers[form], **arguments)
        return served, metric.compute(model=gpt2, **arguments)

    return measure


def assert_same(served, expected, path="", abs=2e-6, rel=1e-6):
    """All numbers agree to `rel`, and everything else but what names the model is equal.

    A perplexity may be relatively as far off as the mean that it is made of: `abs` nats.
    """
    for key in ("signature", "signature_short", "model_name", "probe", "num_forward_tokens"):
        served, expected = ({k: v for k, v in d.items() if k != key} for d in (served, expected))
    compare(served, expected, path, abs, rel)


def compare(value, expected, path, abs=2e-6, rel=1e-6):
    if isinstance(expected, dict) and isinstance(value, dict):
        assert value.keys() == expected.keys(), path
        for key in expected:
            skipped = key in ("signature", "signature_short", "model_name", "probe")
            if not skipped:
                compare(value[key], expected[key], f"{path}.{key}", abs, rel)
    elif isinstance(expected, list) and isinstance(value, list):
        assert len(value) == len(expected), path
        for number, pair in enumerate(zip(value, expected)):
            compare(*pair, f"{path}[{number}]", abs, rel)
    elif isinstance(expected, float) and isinstance(value, float):
        rel = max(abs, rel) if "perplexit" in path else rel
        assert value == pytest.approx(expected, rel=rel, abs=abs, nan_ok=True), path
    else:
        assert value == expected, path


def test_what_needs_the_model_itself_is_refused(metric, tokenizer, servers):
    served = {"model_id": servers["vllm"], "tokenizer": tokenizer}
    with pytest.raises(
        ValueError, match="requires a model with an adapter, got ServedModel without"
    ):
        metric.compute(predictions=TEXTS, **served, reference="without adapter")


@pytest.mark.parametrize("form", FORMS)
def test_every_protocol(both, form):
    served, expected = both(form, protocol="all", max_length=12)
    for of_server, of_model in zip(served["measurements"], expected["measurements"]):
        assert ("error" in of_server) == ("error" in of_model), of_server
        if "error" not in of_model:
            assert_same(of_server, of_model, of_model["protocol"])
    assert sum("error" not in row for row in served["measurements"]) >= 5


@pytest.mark.parametrize("stride", [1, 15])
def test_full_windows_to_the_last_target(both, stride):
    served, expected = both(max_length=CONTEXT, stride=stride)
    assert_same(served, expected)


@pytest.mark.parametrize("start", [False, "once", "every"])
def test_start_tokens(both, start):
    assert_same(*both(add_start_token=start, stride=3, max_length=CONTEXT))


def test_default_window_is_what_the_server_takes(both):
    served, expected = both()
    assert served["max_length"] == CONTEXT
    assert_same(served, expected)


@pytest.mark.parametrize("form", FORMS)
def test_windows_that_a_server_cannot_read(metric, servers, tokenizer, form):
    with pytest.raises(ValueError, match=r"`max_length` must be at most 1[345]|400"):
        metric.compute(
            predictions=TEXTS, model_id=servers[form], tokenizer=tokenizer,
            protocol="lm-eval", max_length=CONTEXT,
        )  # fmt: skip


def test_contexts_spans_and_curves(both):
    contexts = [random_text(20, n) for n in (5, 6, 7)]
    assert_same(*both(contexts=contexts))
    assert_same(*both(score_spans=[[(0, 20), (40, 60)], [(4, 9)], [(10, 70)]]))
    assert_same(*both(context_lengths=[4, 8, 16], stride=2))


def test_tokens_ranks_and_alternatives(both):
    arguments = {"return_token_scores": True, "max_length": 14}
    assert_same(*both(**arguments))
    assert_same(*both(return_token_scores=["rank"], max_length=14))
    served, expected = both(num_alternatives=3, max_length=14)
    assert_same(served, expected)


def test_words_as_plain_sums(both):
    served, expected = both(words=True, word_correction=None)
    for words, of_model in zip(served["word_scores"], expected["word_scores"]):
        compare(words["surprisal"], of_model["surprisal"], "surprisal")
        assert words["entropy"] == [None] * len(words["words"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"words": True}, "`word_correction` must be None"),
        ({"return_token_scores": ["entropy"]}, "entropy of a prediction requires the logits"),
        ({"carry": True, "stride": 4}, "`carry` requires a model of transformers"),
        ({"device": "cpu"}, "`device` must be left out"),
        ({"dtype": "bfloat16"}, "`dtype` must be left out"),
        ({"model_kwargs": {"revision": "main"}}, "got 'revision'"),
        ({"model_kwargs": {"served_name": "other"}}, "serves 'served'"),
        ({"model_kwargs": {"served_name": 5}}, "`served_name` must be the name .* got 5"),
        ({"model_kwargs": {"requests_in_flight": 0}}, "`requests_in_flight` must be"),
        ({"model_kwargs": {"timeout": 0}}, "`timeout` must be"),
        ({"return_token_scores": ["rank"], "max_length": 16}, "max_length=15"),
    ],
)
def test_what_a_server_cannot_give(metric, servers, tokenizer, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        metric.compute(
            predictions=TEXTS, model_id=servers["vllm"], tokenizer=tokenizer, **arguments
        )


def test_ranks_are_refused_where_a_form_has_none(metric, servers, tokenizer):
    with pytest.raises(ValueError, match="does not say the rank"):
        metric.compute(
            predictions=TEXTS, model_id=servers["openai"], tokenizer=tokenizer,
            max_length=12, return_token_scores=["rank"],
        )  # fmt: skip


class CutsByItself(FakeServer):
    """Its own tokenizer joins two tokens that the given one does not."""

    def post(self, path, body):
        status, reply = super().post(path, body)
        if path == "/tokenize":
            reply["tokens"][5:7] = [3]
        return status, reply


def test_own_tokenizer_of_the_server(metric, gpt2, tokenizer):
    """A server that is sent ids gives the numbers of another tokenizer than its users see."""
    cutting = running(CutsByItself(gpt2, tokenizer))
    with (
        cutting as address,
        pytest.warns(UserWarning, match="tokenizes the texts differently .* from token 6 on"),
    ):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)


def test_tokenizer_is_found_by_the_root(metric, gpt2, tmp_path):
    tokenizer = make_tokenizer()
    root = save(tmp_path / "folder", gpt2, tokenizer)
    with running(FakeServer(gpt2, tokenizer, root=root)) as address:
        served = metric.compute(predictions=TEXTS, model_id=address)
    assert_same(served, metric.compute(predictions=TEXTS, model=gpt2, tokenizer=tokenizer))


def test_root_on_another_machine(metric, gpt2):
    elsewhere = running(FakeServer(gpt2, make_tokenizer(), root="/data/on/another"))
    with elsewhere as address, pytest.raises(ValueError, match="`tokenizer` must be given"):
        metric.compute(predictions=TEXTS, model_id=address)


def test_batch_size_and_requests_in_flight_change_nothing(metric, servers, tokenizer):
    results = [
        metric.compute(
            predictions=TEXTS, model_id=servers["vllm"], tokenizer=tokenizer, max_length=10,
            batch_size=size, model_kwargs={"requests_in_flight": flying},
        )
        for size, flying in ((1, 1), (3, 4), (16, 16))
    ]  # fmt: skip
    assert results[0] == results[1] == results[2]


def test_progress_and_checkpoint(metric, gpt2, tokenizer, tmp_path):
    server, seen = FakeServer(gpt2, tokenizer), []
    with running(server) as address:
        arguments = {
            "predictions": TEXTS, "model_id": address, "tokenizer": tokenizer, "stride": 4,
            "checkpoint": tmp_path / "run.sqlite",
        }  # fmt: skip
        first = metric.compute(callback=seen.append, **arguments)
        num_asked = len(server.asked)
        again = metric.compute(**arguments)
    assert seen[-1].done == seen[-1].total
    assert seen[-1].perplexity == pytest.approx(first["perplexity"])
    assert again == first
    # the API is found, the model tested, and its tokenizer compared
    assert len(server.asked) - num_asked <= 10


@pytest.mark.parametrize("address", ["http://user:pass@host/v1", "https://host/v1?key=1"])
def test_addresses_with_secrets(metric, tokenizer, address):
    with pytest.raises(ValueError, match="without user, password or parameters"):
        metric.compute(predictions=TEXTS, model_id=address, tokenizer=tokenizer)


def test_tokens_beside_those_of_the_reference(metric, gpt2, servers, tokenizer):
    arguments = {"predictions": TEXTS, "tokenizer": tokenizer, "max_length": 12}
    arguments |= {"reference": gpt2, "return_token_scores": True}
    served = metric.compute(model_id=servers["vllm"], **arguments)["token_scores"]
    expected = metric.compute(model=gpt2, **arguments)["token_scores"]
    for of_text, of_expected in zip(served, expected):
        del of_expected["kl"]
        compare(of_text, of_expected, "token_scores")


def test_columns_that_a_server_cannot_fill(call, tiny, gpt2, tokenizer, tmp_path):
    """On the terminal, in the report and in the picture there is no divergence."""
    pytest.importorskip("matplotlib")
    text, report, plot = (tmp_path / name for name in ("text.txt", "report.html", "plot.png"))
    text.write_text(random_text(300), "utf-8")
    with running(FakeServer(gpt2, tokenizer)) as address:
        arguments = [f"--tokenizer={tiny}", f"--reference={tiny}", "--max-length=15"]
        ran = call(text, *arguments, f"--html={report}", f"--plot={plot}", model=address)
    assert ran.code == 0, ran.err
    assert "right next token" in ran.out and "KL" not in ran.out
    shown = report.read_text("utf-8")
    assert "Right next token" in shown and "KL divergence<small>" not in shown
    assert plot.stat().st_size > 10_000


def test_a_report_without_ranks_is_refused_by_its_name(call, tiny, servers, tmp_path):
    text, report = tmp_path / "text.txt", tmp_path / "report.html"
    text.write_text(random_text(30), "utf-8")
    ran = call(
        text, f"--tokenizer={tiny}", "--max-length=9", f"--html={report}", model=servers["openai"]
    )
    assert ran.code == 2 and not report.exists()
    assert "Leave out ranks and --num-alternatives, and coloured texts" in ran.err
