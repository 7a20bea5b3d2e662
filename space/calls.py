"""Calls that reproduce the page's number: Python and shell, ready to copy."""

import json
import os
import shlex
from collections.abc import Sequence

from .measure import LoadedModel
from .models import BUNDLED, ROUNDED, ROUNDED_BITS
from .service import Scored

# Longer texts are read from a file.
INLINE_CHARACTERS = 200
TEXT_FILE, CONTEXT_FILE = "text.txt", "context.txt"
# One row, which the command line takes a context from.
TABLE_FILE = "text.jsonl"
SEVERAL = '[one.get("perplexity", one.get("error")) for one in results["measurements"]]'


def text_files(scored: Scored) -> dict[str, str]:
    """Return the files that the calls read, by name."""
    context = scored.settings.context
    made = {TEXT_FILE: scored.text}
    if context:
        row = json.dumps({"text": scored.text, "context": context}, ensure_ascii=False)
        made |= {CONTEXT_FILE: context, TABLE_FILE: row + "\n"}
    return made


def python_call(
    scored: Scored, reference: LoadedModel | None = None, varied: Sequence[dict] = ({},)
) -> str:
    """Write Python that computes the same number from text.txt, or compares with a reference.

    Args:
        varied: for each call, the arguments of which there are several values, see `_arguments`.
    """
    imports, lines, arguments = _model_lines(scored.loaded)
    wanted = 'results["perplexity"]'
    if reference is not None:
        more_imports, more_lines, more = _model_lines(reference)
        imports, lines = (
            [*dict.fromkeys(both)] for both in (imports + more_imports, lines + more_lines)
        )
        entries = ", ".join(f'"{name}": {value}' for name, value in more.items())
        arguments["reference"] = f"{{{entries}}}"
        wanted = 'results["comparison"]["summary"]'
    texts = {"predictions": (scored.text, "text", TEXT_FILE)}
    if scored.settings.context:
        texts["contexts"] = (scored.settings.context, "context", CONTEXT_FILE)
    arguments = {name: f"[{_read(*text)[0]}]" for name, text in texts.items()} | arguments
    return "\n".join(
        [
            *imports,
            "import evaluate",
            "",
            *(line for text in texts.values() for line in _read(*text)[1]),
            *lines,
            f'metric = evaluate.load("{metric_address()}")',
            *(
                line
                for several in varied
                for line in _compute_lines(
                    arguments, _arguments(scored, several), SEVERAL if several else wanted
                )
            ),
        ]
    )


def _compute_lines(named: dict[str, str], own: dict, wanted: str) -> list[str]:
    """Write one call of the metric, which prints what is wanted."""
    arguments = named | {name: literal(value) for name, value in own.items() if name != "contexts"}
    return [
        "results = metric.compute(",
        *(f"    {name}={value}," for name, value in arguments.items()),
        ")",
        f"print({wanted})",
    ]


def _read(text: str, name: str, file: str) -> tuple[str, list[str]]:
    """Write a text as Python: a literal, or a name after the lines that read it from a file."""
    if len(text) <= INLINE_CHARACTERS:
        return literal(text), []
    return name, [f'{name} = open("{file}", encoding="utf-8", newline="").read()']


def _model_lines(loaded: LoadedModel) -> tuple[list[str], list[str], dict[str, str]]:
    """Write the imports and lines before the call, and the model's arguments, as Python."""
    if loaded.name not in (BUNDLED, ROUNDED):
        return [], [], {name: literal(value) for name, value in _named(loaded).items()}
    imports, lines, folder = [], [], literal(BUNDLED)
    if space():  # the bundled model is in the Space, wherever the call is made
        imports = ["from huggingface_hub import snapshot_download"]
        lines = [f'folder = snapshot_download("{space()}", repo_type="space")']
        folder = f'f"{{folder}}/{BUNDLED}"'
    if loaded.name == BUNDLED:
        return imports, lines, {"model_id": folder}
    if space():
        imports = ["import sys", *imports]
        lines.append("sys.path.append(folder)")
    lines += ["from demo_model.round_weights import load_rounded", ""]
    lines.append(f"model, tokenizer = load_rounded({folder})")
    return imports, lines, {"model": "model", "tokenizer": "tokenizer"}


def shell_call(
    scored: Scored, reference: LoadedModel | None = None, varied: Sequence[dict] = ({},)
) -> str:
    """Write commands that print the same number from text.txt, or compare with a reference.

    Args:
        varied: for each command, the arguments of which there are several values, see `_arguments`.
    """
    before = []
    if space():
        folder = space().split("/")[-1]
        address = f"https://huggingface.co/spaces/{space()}"
        before = [f"git clone {address}  # the metric and the bundled model", f"cd {folder}"]
    parent = "../" if before else ""
    if ROUNDED in (scored.loaded.name, reference and reference.name):
        before.append(f"python {BUNDLED}/round_weights.py --bits {ROUNDED_BITS} --output {ROUNDED}")
    commands = (
        _command(_arguments(scored, several), scored, reference, parent) for several in varied
    )
    return "\n".join([*before, *commands])


def _command(own: dict, scored: Scored, reference: LoadedModel | None, parent: str) -> str:
    """Write one command, which reads the text in a folder."""
    arguments, options, file = _named(scored.loaded) | own, [], TEXT_FILE
    if arguments.pop("contexts", None):
        file = TABLE_FILE
        options += ["--context-column", "context"]
    if arguments.pop("words", False):
        options.append("--words")
    if reference is not None:
        of_reference = {f"reference_{name}": value for name, value in _named(reference).items()}
        arguments |= {"reference": of_reference.pop("reference_model_id")} | of_reference
    for name, value in arguments.items():
        options += [f"--{name}", _option(value)]
    return shlex.join(["python", "score.py", parent + file, *options])


def _option(value: object) -> str:
    """Write a value for the command line; separate several by commas."""
    if isinstance(value, list):
        return ",".join(map(_option, value))
    return value if isinstance(value, str) else json.dumps(value)


def literal(value) -> str:
    """Write a value as Python, strings in double quotes."""
    return repr(value) if isinstance(value, bool | int) else json.dumps(value, ensure_ascii=False)


def space() -> str | None:
    """Return the Space that this page runs on, such as user/perplexity_sliding; None elsewhere."""
    return os.environ.get("SPACE_ID")


def metric_address() -> str:
    """Return the location of the metric: this Space, or the folder of the app."""
    return space() or "./perplexity_sliding.py"


def _named(loaded: LoadedModel) -> dict:
    """Return the metric's arguments for a named model, including its version."""
    version = {} if loaded.commit is None else {"model_kwargs": {"revision": loaded.commit}}
    return {"model_id": loaded.name} | version


def _arguments(scored: Scored, varied: dict) -> dict:
    """Return the metric's other arguments, without defaults.

    Args:
        varied: other values for some of them; None for the default.
    """
    defaults = {"add_start_token": True, "protocol": "sliding"}
    arguments = scored.settings.arguments() | varied
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and defaults.get(name) != value
    }
