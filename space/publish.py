"""Publish the metric as a Hugging Face Space, with the files that it needs and no others.

    python -m space.publish user/perplexity_sliding --dry-run
    python -m space.publish user/perplexity_sliding

The Space is the metric, for `evaluate.load("user/perplexity_sliding")`, and the page beside it.
What is uploaded is what is committed; files of an earlier version that are gone are removed.  The
weights stay in git, so that a clone needs no git-lfs.  Log in with `hf auth login` first.

A version is published once: the commit gets the tag `release-VERSION`, for
`evaluate.load(…, revision="release-0.3.0")`, and other code under the same version is refused.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, metadata_load
from huggingface_hub.hf_api import RepoFile

ROOT = Path(__file__).resolve().parent.parent
METRIC = "perplexity_sliding.py"
PACKAGE = "perplexity_sliding"
ABOUT = f"{PACKAGE}/__init__.py"
ATTRIBUTES = ".gitattributes"
# What the Space does not need.
LEFT_OUT = (".ci", ".gitignore", "benchmarks", "demo_model/train.py", "docs/*.py", "tests", "space/publish.py")  # fmt: skip
# What it cannot do without.
NEEDED = (ATTRIBUTES, "README.md", "app.py", "score.py", METRIC, ABOUT, "demo_model/model.safetensors")  # fmt: skip
# The version of the code, in the metric's file and in its package.
VERSION = re.compile(r'^(?:_VERSION|__version__) = "(.+)"$', re.M)
# Never vX.Y.Z: evaluate takes a tag of its own version for the revision to load.  Nor X.Y.Z: it puts
# the v before a revision of that form.
TAG = "release-{}"
LARGEST_FILE = 10_000_000  # bytes that the Hub takes into git
SHORT_DESCRIPTION = 60  # characters that the Hub shows


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def list_files(root: Path = ROOT) -> list[str]:
    """Name the files of the Space, relative to `root`.

    Raises:
        ValueError: one that must be there is missing, or too large.
    """
    left_out = [f":(exclude){pattern}" for pattern in LEFT_OUT]
    files = [name for name in git(root, "ls-files", "-z", "--", ".", *left_out).split("\0") if name]
    for file in NEEDED:
        if file not in files or not (root / file).is_file():
            raise ValueError(f"`{file}` must be there to publish, but {root} has no such file.")
    for file in files:
        if (root / file).is_file() and (size := (root / file).stat().st_size) > LARGEST_FILE:
            raise ValueError(
                f"`{file}` must have at most {LARGEST_FILE:,} bytes, so that a clone needs no git-lfs, "
                f"got {size:,}."
            )
    return files


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


def read_version(root: Path = ROOT) -> str:
    """Return the version of the code.

    Raises:
        ValueError: the metric and its package state different versions.
    """
    own, of_package = (
        VERSION.search((root / file).read_text("utf-8"))[1] for file in (METRIC, ABOUT)
    )
    if own != of_package:
        raise ValueError(
            f"`{METRIC}` and `{ABOUT}` must state one version, got {own} and {of_package}."
        )
    return own


def content_of(file: str, space: str, root: Path = ROOT) -> bytes:
    """Return a file in its published form: with the owner of the Space instead of USER."""
    content = (root / file).read_bytes()
    if file != ABOUT and not file.endswith(".md"):
        return content
    return re.sub(rb"\bUSER\b", space.partition("/")[0].encode(), content)


def blob(content: bytes) -> str:
    """Return the name that git has for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def read_tree(api: HfApi, space: str, revision: str) -> dict[str, str]:
    """Return the files at a revision of a Space, with git's name for each content."""
    tree = api.list_repo_tree(space, recursive=True, revision=revision, repo_type="space")
    return {entry.path: entry.blob_id for entry in tree if isinstance(entry, RepoFile)}


def check_code(own: dict[str, str], there: dict[str, str], where: str, version: str) -> None:
    """Check that the code of a version is what was published under it."""
    differing = [
        file
        for file in sorted(own | there)
        if own.get(file) != there.get(file) and (file == METRIC or file.startswith(f"{PACKAGE}/"))
    ]
    if differing:
        raise ValueError(
            f"Version {version} is in {where} with other code: {', '.join(differing)}. Raise the "
            f"version in {METRIC} and {ABOUT}."
        )


def publish(space: str, files: list[str], private: bool, root: Path = ROOT) -> str:
    """Upload what has changed in one commit, and return its address.

    Raises:
        ValueError: other code was published under this version.
    """
    api, version = HfApi(), read_version(root)
    api.create_repo(space, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    contents = {file: content_of(file, space, root) for file in files}
    own = {file: blob(content) for file, content in contents.items()}
    there, tag = read_tree(api, space, "main"), TAG.format(version)
    is_tagged = tag in {ref.name for ref in api.list_repo_refs(space, repo_type="space").tags}
    if is_tagged:
        check_code(own, read_tree(api, space, tag), f"{space} ({tag})", version)
    if there.get(ABOUT) == own[ABOUT]:  # one that was interrupted before its tag counts as well
        check_code(own, there, space, version)
    changed = [file for file in files if own[file] != there.get(file)]
    if changed and there.get(ATTRIBUTES) != own[ATTRIBUTES]:
        # The Hub decides by the attributes that are there when a file arrives; its own name
        # *.safetensors.
        api.upload_file(
            path_or_fileobj=contents[ATTRIBUTES],
            path_in_repo=ATTRIBUTES,
            repo_id=space,
            repo_type="space",
            commit_message="Keep every file in git",
        )
    operations: list = [
        CommitOperationAdd(path_in_repo=file, path_or_fileobj=contents[file]) for file in changed
    ]
    operations += [CommitOperationDelete(path_in_repo=file) for file in sorted(there.keys() - own)]
    address, revision = f"{space} has all of it already.", "main"
    if operations:
        source = git(root, "rev-parse", "--short", "HEAD").strip()
        message = f"Publish {version} ({source})"
        commit = api.create_commit(space, operations, commit_message=message, repo_type="space")
        address, revision = commit.commit_url, commit.oid
    if not is_tagged:
        api.create_tag(space, tag=tag, revision=revision, repo_type="space")
    return address


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("space", help="name of the Space, such as user/perplexity_sliding")
    parser.add_argument(
        "--dry-run", action="store_true", help="name the files and their sizes, and upload nothing"
    )
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    args = parser.parse_args(argv)
    try:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", args.space):
            raise ValueError(f"the name must be USER/NAME, without an address, got {args.space!r}.")
        files = list_files(root)
        check_card(root)
        version = read_version(root)
        entries = git(root, "status", "--porcelain", "-z", "--", *files, PACKAGE, "space")
        changed = [entry[3:] for entry in entries.split("\0") if entry]
        if changed and not args.dry_run:
            raise ValueError(f"Commit first: {', '.join(changed)} differ from what git has.")
        if args.dry_run:
            for file in files:
                note = "  (not committed)" if file in changed else ""
                print(f"{(root / file).stat().st_size:>12,}  {file}{note}")
            print(
                f"{len(files)} files of version {version} for {args.space}; nothing was uploaded."
            )
            return 0
        print(publish(args.space, files, args.private, root))
        infos = HfApi().get_paths_info(args.space, files, repo_type="space")
        if pointers := [info.path for info in infos if info.lfs]:
            named = ", ".join(pointers)
            print(f"warning: a clone needs git-lfs: the Hub keeps {named} there.", file=sys.stderr)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"publish.py: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # those of the Hub's client differ by version, and by what is wrong
        reason = str(error).strip().partition("\n")[0]
        advice = "Check the network, and log in with `hf auth login`."
        print(f"publish.py: error: {type(error).__name__}: {reason} {advice}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
