"""Publish the metric as a Hugging Face Space, with the files that it needs and no others.

    python -m space.publish user/perplexity_sliding --dry-run
    python -m space.publish user/perplexity_sliding

The Space is the metric, for `evaluate.load("user/perplexity_sliding")`, and the page beside it.
What is uploaded is what is committed; files of an earlier version that are gone are removed.  The
weights stay in git, so that a clone needs no git-lfs.  Log in with `hf auth login` first.

A version is published once: the commit gets the tag `release-VERSION`, for
`evaluate.load(…, revision="release-0.2.0")`, and other code under the same version is refused.
"""

import argparse
import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, metadata_load
from huggingface_hub.hf_api import RepoFile

ROOT = Path(__file__).resolve().parent.parent
METRIC = "perplexity_sliding.py"
PACKAGE = "perplexity_sliding"
ABOUT = f"{PACKAGE}/about.py"
# Programs of the Space; the modules that they import come along.
PROGRAMS = ("app.py", METRIC, "score.py")
ATTRIBUTES = ".gitattributes"
PATTERNS = (
    ATTRIBUTES, "README.md", "CHANGELOG.md", "LICENSE", "requirements.txt", "constraints.txt",
    "pyproject.toml", "docs/*.md", "docs/*.ipynb", "samples/*.txt", "samples/README.md",
    "demo_model/*.json", "demo_model/*.safetensors", "demo_model/README.md",
)  # fmt: skip
PACKAGE_PATTERNS = (
    "*.py", "*.css", "*.js", "*.csv", "compare.txt", "game_rounds.json", "py.typed", "*.woff2",
    "OFL.txt",
)  # fmt: skip
# The version of the code, in the metric's file and in its package.
VERSION = re.compile(r'^_?VERSION = "(.+)"$', re.M)
# Never vX.Y.Z: evaluate takes a tag of its own version for the revision to load.  Nor X.Y.Z: it puts
# the v before a revision of that form.
TAG = "release-{}"
# Files that name the owner of the Space, as USER.
FILLED = ("README.md", ABOUT)
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
                waiting += package_files(root, package) - known
            elif (root / module).exists():
                waiting.append(module)
    return known


def imported_names(source: str) -> set[str]:
    """Return the modules that a source imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def package_files(root: Path, package: str) -> set[str]:
    """Return the files of a package and of the packages in it; those of space without this one."""
    return {
        path.relative_to(root).as_posix()
        for pattern in PACKAGE_PATTERNS
        for path in (root / package).rglob(pattern)
    } - {"space/publish.py"}


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
    """List the files with uncommitted changes, and ignored files."""
    command = ["git", "status", "--porcelain", "--ignored", "-z", "--", *files]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [entry[3:] for entry in output.split("\0") if entry]


def is_code(file: str) -> bool:
    """Return whether a file is code of the metric, which its version identifies."""
    return file == METRIC or file.startswith(f"{PACKAGE}/")


def read_version(root: Path = ROOT) -> str:
    """Return the version of the code.

    Raises:
        ValueError: the metric and its package state different versions.
    """
    texts = {file: (root / file).read_text("utf-8") for file in (METRIC, ABOUT)}
    versions = {file: VERSION.search(text)[1] for file, text in texts.items()}
    if len(set(versions.values())) > 1:
        raise ValueError(
            f"`{METRIC}` and `{ABOUT}` must state one version, got {versions[METRIC]} and "
            f"{versions[ABOUT]}."
        )
    return versions[ABOUT]


def blob(content: bytes) -> str:
    """Return the name that git has for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def published_code(api: HfApi, space: str, revision: str) -> dict[str, str]:
    """Return the files of the metric at a revision of a Space, with git's name for each content."""
    tree = api.list_repo_tree(space, recursive=True, revision=revision, repo_type="space")
    return {
        entry.path: entry.blob_id
        for entry in tree
        if isinstance(entry, RepoFile) and is_code(entry.path)
    }


def published_version(api: HfApi, space: str) -> str | None:
    """Return the version of the code that a Space has now; None for one without a package."""
    if not api.file_exists(space, ABOUT, repo_type="space"):
        return None
    path = api.hf_hub_download(space, ABOUT, repo_type="space")
    found = VERSION.search(Path(path).read_text("utf-8"))
    return found and found[1]


def check_version(
    api: HfApi, space: str, files: Iterable[str], version: str, root: Path = ROOT
) -> bool:
    """Check that no other code was published under this version.

    Returns:
        whether the tag of this version is there.

    Raises:
        ValueError: other code was.
    """
    own = {file: blob(content_of(file, space, root)) for file in files if is_code(file)}
    tag = TAG.format(version)
    is_tagged = tag in {ref.name for ref in api.list_repo_refs(space, repo_type="space").tags}
    # A publication that was interrupted before its tag counts as well.
    is_last = published_version(api, space) == version
    for revision in [tag] * is_tagged + ["main"] * is_last:
        there = published_code(api, space, revision)
        differing = sorted(file for file in own | there if own.get(file) != there.get(file))
        if differing:
            raise ValueError(
                f"Version {version} is in {space} ({revision}) with other code: "
                f"{', '.join(differing)}. Raise the version in {METRIC} and {ABOUT}."
            )
    return is_tagged


def content_of(file: str, space: str, root: Path = ROOT) -> bytes:
    """Return a file in its published form: the citation has the owner instead of USER."""
    content = (root / file).read_bytes()
    if file not in FILLED:
        return content
    owner = space.partition("/")[0].encode()
    return re.sub(rb"\bUSER\b", owner, content)


def operations(
    files: Iterable[str], published: Iterable[str], space: str, root: Path = ROOT
) -> list:
    """List the operations that turn the published files into these."""
    files = list(files)
    gone = sorted(set(published) - set(files))
    contents = {file: content_of(file, space, root) for file in FILLED if file in files}
    added = [
        CommitOperationAdd(path_in_repo=file, path_or_fileobj=contents.get(file, root / file))
        for file in files
    ]
    return added + [CommitOperationDelete(path_in_repo=file) for file in gone]


def publish(space: str, files: list[str], private: bool, root: Path = ROOT) -> str:
    """Upload in one commit, after the file that assigns files to LFS; return the address.

    Raises:
        ValueError: other code was published under this version.
    """
    api, version = HfApi(), read_version(root)
    api.create_repo(space, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    is_tagged = check_version(api, space, files, version, root)
    # The Hub decides by the attributes that are there when a file arrives.  Its own name *.safetensors.
    api.upload_file(
        path_or_fileobj=root / ATTRIBUTES,
        path_in_repo=ATTRIBUTES,
        repo_id=space,
        repo_type="space",
        commit_message="Keep every file in git",
    )
    published = api.list_repo_files(space, repo_type="space")
    source = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    commit = api.create_commit(
        space,
        operations(files, published, space, root),
        commit_message=f"Publish {version} ({source})",
        repo_type="space",
    )
    if not is_tagged:
        tag = TAG.format(version)
        api.create_tag(space, tag=tag, revision=commit.oid, repo_type="space")
    return commit.commit_url


def in_lfs(space: str, files: list[str]) -> list[str]:
    """List the published files that are pointers in a clone without git-lfs."""
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
        version = read_version(root)
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
        print(f"{len(files)} files of version {version} for {args.space}; nothing was uploaded.")
        return 0
    try:
        print(publish(args.space, files, args.private, root))
    except ValueError as error:
        print(f"publish.py: error: {error}", file=sys.stderr)
        return 2
    if pointers := in_lfs(args.space, files):
        named = ", ".join(pointers)
        print(f"warning: a clone needs git-lfs: the Hub keeps {named} there.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
