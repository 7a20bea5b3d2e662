"""Break one module on purpose, a place at a time, and list what its tests do not notice.

    pip install mutmut
    python tests/mutants.py digests              # all mutants of a module
    python tests/mutants.py models.probes 120    # 120 of them, the same ones each time

mutmut works on a copy laid out as in the wheel.  Conditions are also held true and false, which takes a
guard away; words, messages and annotations are left alone.  MUTANTS.md lists
what survives on purpose.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import libcst as cst

ROOT = Path(__file__).resolve().parent.parent
# The tests that concern each module, the fast ones.
TESTS = {
    "digests": "test_digests.py test_verifying.py test_signature.py::test_digests_of_parts_add_up",
    "models.digest": "test_descriptions.py test_signature.py",
    "models.settings": "test_descriptions.py test_signature.py test_unseen_changes.py",
    "models.records": "test_module_walks.py test_live_models.py",
    "models.weights": "test_weights.py test_signature.py",
    "models.module": "test_descriptions.py test_loading.py test_signature.py",
    "models.probes": "test_guards.py",
    "engines.sources": "test_reference.py",
    "models.states": "test_states.py test_carrying.py",
    "plan.windows": "test_windows.py test_passes.py test_parts.py test_long_protocols.py",
    "results.comparison": (
        "test_comparison.py test_same_model.py test_reference.py::test_other_tokenizers_are_compared_by_bytes"
    ),
    "results.pairs": "test_reference.py",
    "results.uncertainty": "test_uncertainty.py",
    "results.words": "test_words.py",
    "scoring.checkpoint": "test_checkpoint.py",
    "scoring.runner": "test_scoring.py test_shared_contexts.py test_passes.py test_checkpoint.py",
    "plan.parts": "test_parts.py test_contexts.py test_context_separator.py test_chats.py",
}
FASTEST = 15  # of these, for each function
CONFIG = """[mutmut]
source_paths =
    perplexity_sliding
only_mutate =
    perplexity_sliding/{path}.py
also_copy =
{copied}
pytest_add_cli_args =
    -x
    -q
    -k
    not coverage and not false_alarms
pytest_add_cli_args_test_selection =
{tests}
track_dependencies = False
timeout_constant = 20.0
"""
# What mutmut makes of a mutant, by the exit status of its tests: a failed test kills it.  It may take
# fifteen times as long as the tests do without it, and five minutes more.
OUTCOMES = {0: "survived", 1: "killed", 3: "killed", 33: "reached by no test"}
OUTCOMES |= dict.fromkeys((-24, 24, 36, 152, 255), "timed out")


def lay_out(module: str, folder: Path) -> None:
    """Copy the project, with its tests beside the package, and configure mutmut."""
    without = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ROOT, folder, ignore=without, dirs_exist_ok=True)
    beside = sorted(path.name for path in folder.iterdir() if path.name != "perplexity_sliding")
    tests = [f"tests/{name}" for name in TESTS[module].split()]
    lines = {"copied": beside, "tests": tests}
    lines = {key: "\n".join(f"    {value}" for value in values) for key, values in lines.items()}
    (folder / "setup.cfg").write_text(CONFIG.format(path=module.replace(".", "/"), **lines))


def choose_operators() -> None:
    """Leave out what guards nothing, and add conditions that are held true or false."""
    from mutmut.mutation import file_mutation, mutators

    def held(node: cst.If | cst.CompIf) -> list:
        return list(mutators.operator_if_exp(node))

    def without_argument(node: cst.Call) -> list:
        return [m for m in mutators.operator_arg_removal(node) if len(m.args) < len(node.args)]

    crashing = {
        mutators.operator_string,
        mutators.operator_arg_removal,
        mutators.operator_assignment,
    }
    kept = [pair for pair in mutators.mutation_operators if pair[1] not in crashing]
    mutators.mutation_operators[:] = [
        *kept, (cst.If, held), (cst.CompIf, held), (cst.Call, without_argument),
    ]  # fmt: skip
    skip = file_mutation.MutationVisitor._skip_node_and_children

    def skips(visitor: object, node: cst.CSTNode) -> bool:
        told = isinstance(node, cst.Call) and "warn" in cst.Module([]).code_for_node(node.func)
        return told or isinstance(node, cst.Raise | cst.FormattedString) or skip(visitor, node)

    file_mutation.MutationVisitor._skip_node_and_children = skips


def keep_fast_tests(mutmut: object) -> None:
    """Try each mutant with the fastest of the tests that reach its function."""
    collect = mutmut.collect_or_load_stats

    def collects(*args: object, **kwargs: object) -> None:
        collect(*args, **kwargs)
        state = mutmut.state()
        for name, tests in state.tests_by_mangled_function_name.items():
            fastest = sorted(tests, key=lambda test: state.duration_by_test[test])[:FASTEST]
            state.tests_by_mangled_function_name[name] = set(fastest)

    mutmut.collect_or_load_stats = collects


def main(module: str, count: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        lay_out(module, Path(folder))
        os.chdir(folder)
        sys.path.insert(0, folder)
        from mutmut import __main__ as mutmut
        from mutmut.mutation.diff_apply import get_diff_for_mutant

        choose_operators()
        keep_fast_tests(mutmut)
        meta = Path("mutants", "perplexity_sliding", f"{module.replace('.', '/')}.py.meta")
        Path("mutants").mkdir()
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.setup_source_paths()
        mutmut.create_mutants(1)
        names = sorted(json.loads(meta.read_text())["exit_code_by_key"])
        chosen = random.Random(0).sample(names, min(len(names), int(count or len(names))))
        mutmut._run(chosen, 1)
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        outcomes = {name: OUTCOMES.get(codes[name], f"exit code {codes[name]}") for name in chosen}
        for name, outcome in sorted(outcomes.items()):
            if outcome != "killed":
                print(f"{outcome}: {get_diff_for_mutant(name)}", flush=True)
        counts = Counter(outcomes.values())
        described = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        print(f"{module}: {len(names)} mutants, {len(chosen)} tried: {described}")


if __name__ == "__main__":
    main(*sys.argv[1:])
