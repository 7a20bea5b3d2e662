"""Open models by name, wherever they run: transformers, GGUF, vLLM, servers."""
