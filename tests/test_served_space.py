"""The Space asks no address that a visitor names, and opens no file of theirs."""

import pytest
import space_models  # noqa: F401  puts the Space's modules in reach

from space.gate import Refused, check_name


@pytest.mark.parametrize(
    "name",
    [
        "http://127.0.0.1:8000/v1",
        "https://example.org/v1",
        "HTTP://example.org",
        "/tmp/model.gguf",
        "model.gguf",
        "./model-Q4_K_M.gguf",
    ],
)
def test_the_space_takes_no_addresses_and_no_files(name):
    with pytest.raises(Refused, match="not the name of a model"):
        check_name(name)
