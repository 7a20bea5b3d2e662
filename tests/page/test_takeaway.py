"""What is taken along of a comparison: its numbers, its address, and calls that give them again."""

import csv
import io
import json
import shlex
import xml.etree.ElementTree as ElementTree

import pytest
from pages import STORY, visitor

from perplexity_sliding.cli import main as command_line
from perplexity_sliding.views.markup import number
from space.handlers import Handlers
from space.jobs import Job
from space.links import MODELS, STRIDES, TOOLS, unpack
from space.metric import new_metric
from space.models import BUNDLED, ROUNDED
from space.service import TradeOff
from space.settings import Settings
from space.share_view import share_view
from space.sharing import write_files
from space.takeaway import of_models, of_strides, of_tools

ASKED = Settings(BUNDLED, 64, 16)


@pytest.fixture(scope="module")
def trade_off(service):
    return service.trade_off(STORY, ASKED, Job(60))


@pytest.fixture(scope="module")
def sweep(service):
    return service.every_protocol(STORY, ASKED, Job(60))


@pytest.fixture(scope="module")
def compared(service):
    return service.compare(STORY, Settings(ROUNDED, 64, 16), BUNDLED, Job(60))


@pytest.fixture(scope="module")
def takeaways(trade_off, sweep, compared):
    taken = (of_models(compared), of_strides(trade_off, ASKED), of_tools(sweep))
    return dict(zip((MODELS, STRIDES, TOOLS), taken))


def rows_of(taken, name):
    return list(csv.DictReader(io.StringIO(taken.files[name])))


@pytest.mark.parametrize("compare", [MODELS, STRIDES, TOOLS])
def test_an_address_has_the_pages_settings_and_what_is_compared(service, takeaways, compare):
    address, _, behind = takeaways[compare].address.partition("#")
    query = dict(pair.split("=") for pair in address[1:].split("&"))
    assert query.pop("compare") == compare
    assert query.pop("other", None) == (ROUNDED if compare == MODELS else None)
    assert query == {
        **{"model": BUNDLED, "window": "64", "stride": "16"},
        **{"start": "automatic", "protocol": "sliding"},
    }
    assert unpack(behind, service.limits) == {"text": STORY}


def test_tables_have_the_numbers_of_the_views(takeaways, trade_off, sweep, compared):
    for name, results in (("strides", trade_off.strides), ("tools", sweep.scored)):
        rows = rows_of(takeaways[name], f"{name}.csv")
        assert [float(row["perplexity"]) for row in rows] == [
            one.result["perplexity"] for one in results
        ]
        assert [row["signature"] for row in rows] == list(takeaways[name].signatures)
        whole = json.loads(takeaways[name].files[f"{name}.json"])
        assert [row["perplexity"] for row in whole[name]] == [
            one.result["perplexity"] for one in results
        ]
    rows = rows_of(takeaways[MODELS], "comparison.csv")
    assert [float(row["kl"]) for row in rows] == compared.scored.tokens["kl"]
    whole = json.loads(takeaways[MODELS].files["comparison.json"])
    assert whole["comparison"]["perplexity_ratio"] == compared.comparison["perplexity_ratio"]


def test_words_name_models_and_numbers(takeaways, compared, sweep):
    for taken in (takeaways[MODELS].friend, takeaways[MODELS].paper):
        assert ROUNDED in taken and "he model" not in taken and "he reference" not in taken
    low = min(one.result["perplexity"] for one in sweep.scored)
    assert f"Same model, same text: {low:,.0f}"[:26] in takeaways[TOOLS].friend
    assert all(one.settings.protocol in takeaways[TOOLS].paper for one in sweep.scored)


@pytest.mark.parametrize("compare", [MODELS, STRIDES, TOOLS])
def test_a_picture_has_a_title_and_stays_inside_its_frame(takeaways, compare):
    tree = ElementTree.fromstring(takeaways[compare].picture)
    height = float(tree.get("height"))
    words = [node for node in tree.iter() if node.tag.endswith("}text")]
    assert any(node.get("font-size") == "24" for node in words)
    assert all(0 < float(node.get("y")) < height - 20 for node in words)
    dots = [float(one.get("x")) for one in tree.iter() if one.get("rx") == "7"]
    assert dots == sorted(dots) if compare == TOOLS else True


@pytest.mark.parametrize("compare", [STRIDES, TOOLS])
def test_calls_give_the_numbers_again(takeaways, folders, tmp_path, monkeypatch, capsys, compare):
    taken = takeaways[compare]
    (tmp_path / "demo_model").symlink_to(folders["bytes"])
    monkeypatch.chdir(tmp_path)
    write_files(taken.files, tmp_path)
    printed = []
    for line in taken.shell.splitlines():
        command = shlex.split(line)
        assert command[:2] == ["python", "score.py"]
        assert command_line.main([*command[2:], "--json"]) in (0, None)
        printed.append(json.loads(capsys.readouterr().out))
    printed, own = printed[-1]["measurements"], printed[0].get("corpus")
    call = taken.python.replace('evaluate.load("./perplexity_sliding.py")', "metric")
    python = {"metric": new_metric()}
    exec(call.replace("import evaluate\n", ""), python)
    said = capsys.readouterr().out.splitlines()
    varied = "stride" if compare == STRIDES else "protocol"
    shown = {
        row[varied]: float(row["perplexity"])
        for row in rows_of(taken, f"{compare}.csv")
        if compare == STRIDES or row["protocol"] != "sliding"  # with a stride of the page's own
    }
    assert len(shown) >= 4
    for entries in (printed, python["results"]["measurements"]):
        again = {str(one[varied]): one["perplexity"] for one in entries if "error" not in one}
        again.pop("sliding", None)
        assert again == pytest.approx(shown, rel=1e-5)
    if compare == TOOLS:  # the page's own number comes first
        number = float(rows_of(taken, "tools.csv")[0]["perplexity"])
        assert [own["perplexity"], float(said[0])] == pytest.approx([number] * 2, rel=1e-5)
        assert len(said) == 2


def test_tools_with_their_usual_settings_are_one_call(service):
    for settings in (Settings(BUNDLED, 64, 32), Settings(BUNDLED, 64, protocol="lm-eval")):
        taken = of_tools(service.every_protocol(STORY, settings, Job(60)))
        assert taken.shell.count("score.py") == taken.python.count("compute(") == 1


def test_where_no_smaller_stride_helps_the_words_say_so(scored):
    trade_off = TradeOff([scored, scored])
    taken, perplexity = of_strides(trade_off, ASKED), number(scored.result["perplexity"])
    said = "no smaller stride lowers"
    assert taken.friend == f"Same model, same text: perplexity {perplexity}, and {said} it."
    assert said in taken.picture and "→" not in taken.picture


def test_what_is_no_longer_kept_is_not_shared(service, scored, takeaways):
    handlers = Handlers(service, scored)
    taken = takeaways[TOOLS]
    drawer, _ = handlers.share(visitor(), TOOLS, taken.mark, None, None, None, taken)
    assert drawer == share_view(taken)
    for mark, kept in ((taken.mark, None), ("another", taken)):
        said, files = handlers.share(visitor(), TOOLS, mark, None, None, None, kept)
        assert 'role="alert"' in said and files._constructor_args[0]["visible"] is False
