"""What callers get wrong must cost them an error that names the field, and nobody else anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models

from headrace import LLM, AsyncLLM, SamplingParams
from headrace.contract.errors import ConfigError, EngineBusy, EngineDead, InvalidRequest, WorkerError
from headrace.contract.salts import joined

PROMPT = {"prompt_token_ids": [1, 2, 3]}
LONG = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=7, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("dummy") / "config.json"
    path.write_text(json.dumps(tiny_models.CONFIGS["llama"]))
    return f"dummy:{path}"


@pytest.fixture
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, kv_memory=8 << 20) as loaded:
        yield loaded


def works(llm: LLM) -> None:
    [output] = llm.generate([[1, 2, 3]], SHORT)
    assert len(output.outputs[0].token_ids) == 7
    assert llm.engine.core.num_used_blocks == 0


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("ignore_eos", {"ignore_eos": "yes"}),
    ("skip_special_tokens", {"skip_special_tokens": None}),
    ("stop", {"stop": 5}),
    ("stop", {"stop": [5]}),
    ("stop", {"stop": b"x"}),
    ("stop_token_ids", {"stop_token_ids": 7}),
    ("stop_token_ids", {"stop_token_ids": "12"}),
    ("allowed_token_ids", {"allowed_token_ids": [True]}),
    ("banned_token_ids", {"banned_token_ids": [1.0]}),
    ("logit_bias", {"logit_bias": [1]}),
    ("logit_bias", {"logit_bias": {"1": 1.0}}),
    ("logit_bias", {"logit_bias": {1: "x"}}),
    ("temperature", {"temperature": 10**400}),
    ("temperature", {"temperature": "0"}),
    ("temperature", {"temperature": None}),
    ("repetition_penalty", {"repetition_penalty": 1e-40}),
    ("top_k", {"top_k": None}),
    ("n", {"n": 1.0}),
    ("logprobs", {"logprobs": 62}),  # the model has 61 ids
    ("prompt_logprobs", {"prompt_logprobs": 1024}),
    ("banned_token_ids", {"banned_token_ids": range(61)}),
    ("min_tokens", {"allowed_token_ids": [3], "stop_token_ids": [3], "min_tokens": 2}),
    ("min_tokens", {"banned_token_ids": range(60), "stop_token_ids": [60], "min_tokens": 2}),
]


@pytest.mark.parametrize(("field", "wishes"), WRONG)
def test_wrong_types_name_the_field(llm: LLM, field: str, wishes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate([PROMPT], SamplingParams(**wishes))
    assert caught.value.field == field


def test_all_ids_of_the_vocabulary_can_be_reported(llm: LLM) -> None:
    [output] = llm.generate([PROMPT], SamplingParams(max_tokens=2, logprobs=61, prompt_logprobs=61))
    assert output.outputs[0].error is None
    assert len(output.outputs[0].token_ids) == 2


def test_a_temperature_below_float32_is_settled_as_greedy() -> None:
    assert [SamplingParams(temperature=t).settled(61).temperature for t in (1e-300, 1e-44)] == [0.0, 1e-44]


@pytest.mark.parametrize("params", [{"temperature": 0}, "x", 5])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: object) -> None:
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate([PROMPT], params)  # type: ignore[arg-type]
    works(llm)


@pytest.mark.parametrize(
    ("field", "prompt"),
    [
        ("priority", {**PROMPT, "priority": 2**70}),
        ("priority", {**PROMPT, "priority": True}),
        ("cache_salt", {**PROMPT, "cache_salt": "\ud800"}),
        ("cache_salt", {**PROMPT, "cache_salt": 5}),
        ("cache_salt", {**PROMPT, "cache_salt": joined("tenant", "b", "")}),
        ("kv_class", {**PROMPT, "kv_class": "robot"}),
        ("kv_class", {**PROMPT, "kv_class": None}),
        ("5", {**PROMPT, 5: 1, "x": 2}),
        ("prompt_token_ids", {"prompt_token_ids": {1: 2}}),
    ],
)
def test_wrong_prompts_name_the_field(llm: LLM, field: str, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate([prompt])
    assert caught.value.field == field
    works(llm)


def test_numpy_values_are_as_good_as_python_s(llm: LLM) -> None:
    params = SamplingParams(
        temperature=np.float32(0.0),
        max_tokens=np.int64(7),  # type: ignore[arg-type]
        stop_token_ids=np.array([60]),  # type: ignore[arg-type]
        banned_token_ids=range(5),
        logit_bias={np.int64(3): np.float32(1)},
        ignore_eos=True,
    )
    same = SamplingParams(
        temperature=0, max_tokens=7, stop_token_ids=[60], banned_token_ids=[0, 1, 2, 3, 4], logit_bias={3: 1.0}
    )
    ids = [llm.generate([{"prompt_token_ids": np.array([1, 2, 3])}], p)[0].outputs[0].token_ids for p in (params, same)]
    assert ids[0] == ids[1]


def test_a_second_use_while_the_first_goes_on_is_refused(llm: LLM) -> None:
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    with pytest.raises(EngineBusy):
        llm.generate([PROMPT], SHORT)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            llm.generate([PROMPT], SHORT)
        except EngineBusy as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(20)
    assert len(errors) == 1
    stream.close()  # type: ignore[attr-defined]
    works(llm)


def test_closing_under_a_stream_ends_it_with_an_error(model: str) -> None:
    llm = LLM(model, kv_memory=8 << 20)
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    llm.close()
    with pytest.raises(EngineDead):
        for _ in stream:
            pass
    with pytest.raises(EngineDead):
        llm.generate([PROMPT])


def test_closing_from_a_callback_is_no_endless_loop(model: str) -> None:
    llm = LLM(model, kv_memory=8 << 20)
    with pytest.raises(EngineDead):
        llm.generate([PROMPT, PROMPT], [SHORT, LONG], on_output=lambda _: llm.close())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process started in the background is told to ignore the signal, and hands that down."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("turn", range(6))
def test_ctrl_c_in_the_middle_leaves_a_working_engine(llm: LLM, turn: int) -> None:
    """The signal comes from inside a turn, at a different one each time."""
    original, turns = llm.engine.worker.collect, [0]

    def collect(handle: Any, timeout_s: float) -> Any:
        turns[0] += 1
        if turns[0] == turn + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(handle, timeout_s)

    llm.engine.worker.collect = collect  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT] * 3, LONG)
    llm.engine.worker.collect = original  # type: ignore[method-assign]
    works(llm)


def test_settings_beside_a_whole_configuration_are_refused(model: str) -> None:
    from headrace.config import resolve

    with pytest.raises(ConfigError, match="config"):
        LLM(config=resolve({"model": model}), dtype="bogus")


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def own_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def collect_ids(llm: AsyncLLM, params: SamplingParams, name: str | None = None, n: int = 3) -> list[list[int]]:
    prompt = {"prompt_token_ids": [1, 2, n]}
    outputs = [output async for output in llm.generate(prompt, params, name)]
    return [choice.token_ids for choice in outputs[-1].outputs]


def test_names_may_be_reused_at_once_and_look_like_choices(model: str, own_process: bool) -> None:
    async def scenario() -> None:
        async with AsyncLLM(model, own_process=own_process, kv_memory=8 << 20) as llm:
            expected = await collect_ids(llm, SHORT, n=5)
            for _ in range(5):
                stream = llm.generate(PROMPT, LONG, "x")
                async for _ in stream:
                    break
                await stream.aclose()  # type: ignore[attr-defined]
                assert await collect_ids(llm, SHORT, "x", n=5) == expected
            two = SamplingParams(n=2, max_tokens=5, temperature=0, ignore_eos=True)
            both = await asyncio.wait_for(
                asyncio.gather(collect_ids(llm, two, "a"), collect_ids(llm, SHORT, "a#1")), 60
            )
            assert [len(ids) for ids in both[0]] == [5, 5]
            assert [len(ids) for ids in both[1]] == [7]

    asyncio.run(scenario())


def test_a_closed_event_loop_costs_only_its_own_requests(model: str, own_process: bool) -> None:
    llm = AsyncLLM(model, own_process=own_process, kv_memory=8 << 20)

    async def leave() -> None:
        llm.client.submit(llm.prepare(PROMPT, LONG).requests[0], sink_of_this_loop())

    def sink_of_this_loop() -> Any:
        loop = asyncio.get_running_loop()
        return lambda _: loop.call_soon_threadsafe(lambda: None)

    asyncio.run(leave())
    [ids] = asyncio.run(asyncio.wait_for(collect_ids(llm, SHORT), 60))
    assert len(ids) == 7
    llm.close()


def test_a_child_that_stands_still_is_noticed(model: str) -> None:
    llm = AsyncLLM(model, own_process=True, kv_memory=8 << 20)
    llm.client._silence_timeout_s = 4.0  # type: ignore[attr-defined]
    pid = llm.client.pid  # type: ignore[attr-defined]

    async def scenario() -> None:
        assert len((await collect_ids(llm, SHORT))[0]) == 7
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match="no sign of life"):
            await collect_ids(llm, SHORT)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    llm.close()


def test_a_message_that_is_none_costs_its_own_request(model: str) -> None:
    """Even past the front's checks: the child answers for that request, and serves the next."""
    import queue

    llm = AsyncLLM(model, own_process=True, kv_memory=8 << 20)
    good = llm.prepare(PROMPT, SHORT).requests[0]
    bad = type(good)(**{**{f: getattr(good, f) for f in good.__struct_fields__}, "priority": "high"})
    news: queue.Queue[Any] = queue.Queue()
    llm.client.submit(bad, news.put)
    delta = news.get(timeout=60)
    assert delta.finish_reason == "error"
    assert "priority" in delta.error
    assert len(asyncio.run(collect_ids(llm, SHORT))[0]) == 7
    llm.close()


def test_one_prepared_twice_at_once_is_refused_and_again_afterwards_is_not(llm: LLM) -> None:
    prepared = llm.prepare(PROMPT, SHORT)
    with pytest.raises(InvalidRequest, match="is on its way already"):
        list(llm.feed([prepared, prepared]))
    for _ in range(2):
        ends = [output.finished for news in llm.feed([prepared]) for output in news]
        assert ends[-1]
    works(llm)


def test_the_end_may_be_the_only_token_where_nothing_forbids_it(llm: LLM) -> None:
    params = SamplingParams(allowed_token_ids=[3], stop_token_ids=[3], temperature=0)
    assert llm.generate([PROMPT], params)[0].outputs[0].finish_reason == "stop"
