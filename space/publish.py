"""Publish the metric as a Hugging Face Space, with the files that it needs and no others.

    python -m space.publish user/perplexity_sliding --dry-run
    python -m space.publish user/perplexity_sliding

The Space is the metric, for `evaluate.load("user/perplexity_sliding")`, and the page beside it.
What is uploaded is what is committed; files of an earlier version that are gone are removed.  The
weights stay in git, so that a clone needs no git-lfs.  Log in with `hf auth login` first.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, metadata_load

ROOT = Path(__file__).resolve().parent.parent
# Programs of the Space; the modules that they import come along.
PROGRAMS = ("app.py", "perplexity_sliding.py", "score.py")
ATTRIBUTES = ".gitattributes"
PATTERNS = (
    ATTRIBUTES,
    "README.md",
    "LICENSE",
    "requirements.txt",
    "docs/*.md",
    "docs/*.ipynb",
    "samples/*.txt",
    "samples/README.md",
    "demo_model/*.json",
    "demo_model/*.safetensors",
    "demo_model/README.md",
)
PACKAGE_PATTERNS = ("*.py", "*.css", "*.js")
PICTURE = re.compile(r"""[("'](docs/[\w./-]+\.(?:png|svg|gif))[)"']""")
LARGEST_FILE = 10_000_000  # bytes that the Hub takes into git
SHORT_DESCRIPTION = 60  # characters that the Hub shows


def list_files(root: Path = ROOT) -> list[str]:
    """Name the files of the Space, relative to `root`.

    Raises:
        ValueError: one that must be there is missing.
    """
    files = set(with_imports(root, PROGRAMS))
    for pattern in PATTERNS:
        matching = sorted(root.glob(pattern))
        if not matching:
            raise ValueError(f"`{pattern}` must be there to publish, but {root} has no such file.")
        files |= {path.relative_to(root).as_posix() for path in matching}
    files |= set(pictures(root))
    return sorted(files)


def with_imports(root: Path, programs: Iterable[str]) -> set[str]:
    """Return the programs and every module of the repository that they import, directly or not."""
    known, waiting = set(), list(programs)
    while waiting:
        file = waiting.pop()
        if file in known:
            continue
        known.add(file)
        if not file.endswith(".py"):
            continue
        for name in imported_names((root / file).read_text(encoding="utf-8")):
            module, package = f"{name.replace('.', '/')}.py", name.split(".")[0]
            if (root / package / "__init__.py").exists():
                waiting += package_files(root, package)
            elif (root / module).exists():
                waiting.append(module)
    return known


def imported_names(source: str) -> set[str]:
    """Return the modules that a source imports; `from .windows` counts as windows."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def package_files(root: Path, package: str) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for pattern in PACKAGE_PATTERNS
        for path in (root / package).glob(pattern)
        if path.name != Path(__file__).name
    }


def pictures(root: Path) -> list[str]:
    """List the pictures that the README shows."""
    named = PICTURE.findall((root / "README.md").read_text(encoding="utf-8"))
    missing = [name for name in named if not (root / name).exists()]
    if missing:
        raise ValueError(f"`README.md` must show pictures that are there, got {missing[0]}.")
    return named


def check_card(root: Path = ROOT) -> None:
    """Refuse a README whose header would not make a working Space."""
    card = metadata_load(root / "README.md") or {}
    if card.get("sdk") != "gradio" or card.get("app_file") != "app.py":
        raise ValueError(
            "`README.md` must begin with a YAML header with `sdk: gradio` and `app_file: app.py`, got "
            f"sdk={card.get('sdk')!r} and app_file={card.get('app_file')!r}."
        )
    words = card.get("short_description", "")
    if len(words) > SHORT_DESCRIPTION:
        raise ValueError(
            f"`short_description` must have at most {SHORT_DESCRIPTION} characters, got {len(words)}."
        )


def check_sizes(files: Iterable[str], root: Path = ROOT) -> None:
    """Refuse a file that git on the Hub would not take."""
    for file in files:
        if (size := (root / file).stat().st_size) > LARGEST_FILE:
            raise ValueError(
                f"`{file}` must have at most {LARGEST_FILE:,} bytes, so that a clone needs no git-lfs, "
                f"got {size:,}."
            )


def uncommitted(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """List those of the files that git does not have as they are."""
    command = ["git", "status", "--porcelain", "--ignored", "-z", "--", *files]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [entry[3:] for entry in output.split("\0") if entry]


def operations(files: Iterable[str], published: Iterable[str], root: Path = ROOT) -> list:
    """List the operations that turn the published files into these."""
    files = list(files)
    gone = sorted(set(published) - set(files))
    added = [CommitOperationAdd(path_in_repo=file, path_or_fileobj=root / file) for file in files]
    return added + [CommitOperationDelete(path_in_repo=file) for file in gone]


def publish(space: str, files: list[str], private: bool, root: Path = ROOT) -> str:
    """Upload in one commit, and before it what says which files go to LFS; return its address."""
    api = HfApi()
    api.create_repo(space, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    # The Hub decides by the attributes that are there when a file arrives.  Its own name *.safetensors.
    api.upload_file(
        path_or_fileobj=root / ATTRIBUTES,
        path_in_repo=ATTRIBUTES,
        repo_id=space,
        repo_type="space",
        commit_message="Keep every file in git",
    )
    published = api.list_repo_files(space, repo_type="space")
    version = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    commit = api.create_commit(
        space,
        operations(files, published, root),
        commit_message=f"Publish {version}",
        repo_type="space",
    )
    return commit.commit_url


def in_lfs(space: str, files: list[str]) -> list[str]:
    """List those of the published files that a clone without git-lfs has as pointers."""
    return [
        info.path for info in HfApi().get_paths_info(space, files, repo_type="space") if info.lfs
    ]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("space", help="name of the Space, such as user/perplexity_sliding")
    parser.add_argument(
        "--dry-run", action="store_true", help="name the files and their sizes, and upload nothing"
    )
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return the exit code."""
    args = parse_arguments(argv)
    try:
        check_card(root)
        files = list_files(root)
        check_sizes(files, root)
        changed = uncommitted(files, root)
        if changed and not args.dry_run:
            raise ValueError(f"Commit first: {', '.join(changed)} differ from what git has.")
    except (ValueError, OSError) as error:
        print(f"publish.py: error: {error}", file=sys.stderr)
        return 2
    for file in files:
        note = "  (not committed)" if file in changed else ""
        print(f"{(root / file).stat().st_size:>12,}  {file}{note}")
    if args.dry_run:
        print(f"{len(files)} files for {args.space}; nothing was uploaded.")
    else:
        print(publish(args.space, files, args.private, root))
        if pointers := in_lfs(args.space, files):
            named = ", ".join(pointers)
            print(f"warning: a clone needs git-lfs: the Hub keeps {named} there.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
