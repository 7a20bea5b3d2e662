"""Start vLLM with the bundled model and let it answer once; exits with 0 if it does."""

import os

from test_vllm import DEMO, SETTINGS, WINDOW

if __name__ == "__main__":
    os.environ.update(SETTINGS)
    from vllm import LLM, SamplingParams

    engine = LLM(model=str(DEMO), dtype="float32", max_model_len=WINDOW, enforce_eager=True)
    (output,) = engine.generate(["Once upon a time"], SamplingParams(max_tokens=1))
    assert output.outputs[0].token_ids
