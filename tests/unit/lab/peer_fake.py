"""An engine that does what its options say, for tests of the comparison. Loaded by the real runner program."""

import os
import time


class Peer:
    def load(self, model, threads, block_size=32, name="fake", journal=None, speed=1.0, **faults):
        del threads, block_size
        self._name, self._journal, self._speed, self._faults = name, journal, speed, faults
        print("noise on stdout")
        if "load" in faults:
            raise ValueError(f"{model}: cannot\nload")
        return {"version": f"{name} 1.0", "detail": "fake"}

    def generate(self, prompts, max_tokens):
        self._note(f"generate {len(prompts[0])}")
        if self._faults.get("die_at") == len(prompts[0]):
            print("last words", flush=True)
            os._exit(3)
        count = len(prompts) * max_tokens
        return {"first_s": 1 / self._speed, "total_s": (1 + count) / self._speed, "num_output": count}

    def steps(self, prompts, num_steps):
        return {"seconds": [len(prompts) / self._speed] * num_steps}

    def score(self, windows):
        return {"sums": [-self._faults.get("nats", 1.0) * (len(ids) - 1) for ids in windows]}

    def lookup(self, prompt, repeats):
        return {"hash_s": len(prompt) * 1e-6, "lookup_s": repeats * 1e-6}

    def sleep(self, seconds):
        time.sleep(seconds)
        return {}

    def _note(self, what):
        if self._journal:
            with open(self._journal, "a") as file:
                file.write(f"{self._name} {what}\n")
