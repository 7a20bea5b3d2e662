"""The version of this package, and how to cite it."""

VERSION = "0.1.0"

CITATION = """\
@software{perplexity_sliding,
  title = {Perplexity Sliding: perplexity of texts of any length, under every published protocol},
  year = {2026},
  version = {VERSION},
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
