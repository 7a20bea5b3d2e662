"""Version, citation and import path of this package."""

import hashlib
import os
from pathlib import Path

VERSION = "0.2.0"

# Publishing replaces USER by the Space's owner.
CITATION = """\
@software{perplexity_sliding,
  author = {USER},
  title = {Perplexity Sliding: perplexity of texts of any length, under every published protocol},
  year = {2026},
  version = {VERSION},
  url = {https://huggingface.co/spaces/USER/perplexity_sliding},
  license = {Apache-2.0}
}

@article{jelinek1977perplexity,
  title = {Perplexity—a measure of the difficulty of speech recognition tasks},
  author = {Jelinek, Fred and Mercer, Robert L. and Bahl, Lalit R. and Baker, James K.},
  journal = {The Journal of the Acoustical Society of America},
  volume = {62},
  year = {1977}
}
""".replace("{VERSION}", f"{{{VERSION}}}")


def import_folder() -> str:
    """Return a folder from which Python imports this package and nothing else.

    The parent folder is unsuitable: in a clone it also contains app, score, tests and space, which
    would shadow a user's modules.
    """
    from huggingface_hub.constants import HF_HOME

    package = Path(__file__).parent.resolve()
    name = hashlib.sha256(str(package).encode()).hexdigest()[:16]
    # evaluate's folder for copies of metrics
    modules = os.environ.get("HF_MODULES_CACHE", os.path.join(HF_HOME, "modules"))
    folder = Path(modules, "perplexity-sliding", name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / package.name).symlink_to(package, target_is_directory=True)
    except FileExistsError:
        pass
    except OSError:  # links need privileges on Windows; the cache may be read-only
        return str(package.parent)
    return str(folder)
