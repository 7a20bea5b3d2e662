"""Version and citation of this package."""

VERSION = "0.3.0"

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
