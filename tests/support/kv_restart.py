"""A process that answers one prompt of ids with a KV store, tells what it took, and may then wait to be killed."""

from __future__ import annotations

import json
import sys
import time

from headrace import LLM, SamplingParams


def main(store: str, wait: str, dtype: str = "float32") -> None:
    ids = json.load(sys.stdin)
    with LLM(kv_store=store, dtype=dtype, kv_memory=512 << 20, max_model_len=len(ids) + 32) as llm:
        start = time.monotonic()
        [output] = llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0, max_tokens=8, logprobs=1))
        choice = output.outputs[0]
        logprobs = [{token: value.logprob for token, value in row.items()} for row in choice.logprobs or []]
        report = {
            "ids": list(choice.token_ids),
            "logprobs": repr(logprobs),
            "cached": output.num_cached_tokens,
            "seconds": time.monotonic() - start,
        }
        if wait == "wait":
            _until_something_is_saved(llm)
        print(json.dumps(report), flush=True)
        if wait == "wait":
            time.sleep(600)


def _until_something_is_saved(llm: LLM) -> None:
    """The saver works behind the answer: without this a kill may come before its first grain."""
    end = time.monotonic() + 60
    while llm.engine._kv._connector.counts()["saved"] == 0:
        if time.monotonic() > end:
            raise TimeoutError("nothing was saved within a minute")
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
