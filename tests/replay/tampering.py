"""Small lies told of a recorded case, each made in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.replay.recorded import Case


def choice_of(case: Case) -> Case:
    choice: Case = case["response"]["choices"][0]
    return choice


def wide_row(choice: Case) -> int:
    return next(i for i, mask in enumerate(choice["sampling_mask"]) if len(mask) > 3)


def swap_a_token(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    token = choice["token_ids"][row]
    other = next(i for i in choice["sampling_mask"][row] if i != token)
    entry = choice["logprobs"]["content"][row]
    entry["top_logprobs"].sort(key=lambda candidate: candidate["token_id"] != other)
    entry.update(entry["top_logprobs"][0])
    choice["token_ids"][row] = other


def shift_masks(case: Case) -> None:
    masks = choice_of(case)["sampling_mask"]
    masks.append(masks.pop(0))


def drop_a_mask_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    mask = choice["sampling_mask"][row]
    mask.remove(next(i for i in mask if i != choice["token_ids"][row]))


def drop_the_sampled_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    choice["sampling_mask"][row].remove(choice["token_ids"][row])


def add_a_listed_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    top = choice["logprobs"]["content"][row]["top_logprobs"]
    choice["sampling_mask"][row].append(next(c["token_id"] for c in top if c["logprob"] == -9999.0))


def add_an_unlisted_id(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    listed = {c["token_id"] for c in choice["logprobs"]["content"][row]["top_logprobs"]}
    choice["sampling_mask"][row].append(next(i for i in range(48) if i not in listed))


def repeat_a_mask_id(case: Case) -> None:
    mask = choice_of(case)["sampling_mask"][3]
    mask.insert(0, mask[0])


def empty_a_mask(case: Case) -> None:
    choice_of(case)["sampling_mask"][2] = []


def each_logprob(case: Case, change: Callable[[float], float]) -> None:
    for entry in choice_of(case)["logprobs"]["content"]:
        for candidate in (entry, *entry["top_logprobs"]):
            if candidate["logprob"] > -9999.0:
                candidate["logprob"] = change(candidate["logprob"])


def raw_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob - 0.1)


def scaled_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob * 1.1)


def half_precision_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: float(np.float16(logprob)))


def logits_for_logprobs(case: Case) -> None:
    each_logprob(case, lambda logprob: logprob + 5.0)


def shift_logprobs(case: Case) -> None:
    content = choice_of(case)["logprobs"]["content"]
    content.append(content.pop(0))


def finite_logprob_outside(case: Case) -> None:
    choice = choice_of(case)
    row = wide_row(choice)
    top = choice["logprobs"]["content"][row]["top_logprobs"]
    next(c for c in top if c["logprob"] == -9999.0)["logprob"] = -8.0


def contradict_the_sampled_logprob(case: Case) -> None:
    choice_of(case)["logprobs"]["content"][5]["logprob"] -= 0.01


def list_a_candidate_twice(case: Case) -> None:
    top = choice_of(case)["logprobs"]["content"][4]["top_logprobs"]
    top.append({**top[0], "logprob": top[0]["logprob"] - 1.0})


def id_beyond_vocabulary(case: Case) -> None:
    choice = choice_of(case)
    choice["token_ids"][0] = 9223372034707292159


def wrong_seed(case: Case) -> None:
    case["request"]["sampling_params"]["seed"] += 1


def wrong_version(case: Case) -> None:
    case["vllm_version"] = "0.30.0"


def another_prompt(case: Case) -> None:
    case["request"]["token_ids"].append(3)


def another_min_p(case: Case) -> None:
    case["request"]["sampling_params"]["min_p"] = 0.5


def another_top_k(case: Case) -> None:
    case["request"]["sampling_params"]["top_k"] = 4


def two_choices_under_one_index(case: Case) -> None:
    case["request"]["sampling_params"]["n"] = 2
    case["response"]["choices"] *= 2
