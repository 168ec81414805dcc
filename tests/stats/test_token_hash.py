from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from spsbench.stats.summary import token_hash

Make = Callable[..., pd.DataFrame]


def written(make_samples: Make) -> pd.DataFrame:
    samples = pd.concat(
        [make_samples([1.0] * 3, [2] * 3), make_samples([1.0] * 3, [2] * 3, method="sps", k=4)],
        ignore_index=True,
    )
    samples["token_ids"] = [[i, i + 1] for i in range(6)]
    return samples


def test_order_and_times_do_not_matter_but_every_token_does(make_samples: Make) -> None:
    samples = written(make_samples)
    found = token_hash(samples)
    assert found is not None
    assert len(found) == 64
    assert token_hash(samples.iloc[::-1].assign(decode_s=5.0)) == found
    changed = samples.copy()
    changed.at[4, "token_ids"] = [4, 6]
    assert token_hash(changed) != found
    assert token_hash(samples.iloc[:-1]) != found


def test_later_samples_and_late_tokens_count(make_samples: Make) -> None:
    samples = make_samples([1.0] * 4, [200] * 4, samples_per_prompt=2)
    samples["token_ids"] = [[*range(200)] for _ in range(4)]
    hashes = {token_hash(samples)}
    for row, place in ((1, 0), (3, 64), (0, 199)):
        changed = samples.copy()
        changed.at[row, "token_ids"] = [*range(place), 999, *range(place + 1, 200)]
        hashes.add(token_hash(changed))
    assert len(hashes) == 4


def test_tokens_do_not_run_together(make_samples: Make) -> None:
    """[1, 23] and [12, 3], and a token that moves from one sequence to the next."""
    samples = written(make_samples)
    hashes = set()
    for ids in ([[1, 23], [4]], [[12, 3], [4]], [[1], [23, 4]]):
        part = samples.iloc[:2].copy()
        part["token_ids"] = ids
        hashes.add(token_hash(part))
    assert len(hashes) == 3


def test_failed_sequences_are_left_out_and_nothing_has_no_hash(make_samples: Make) -> None:
    samples = written(make_samples)
    failed = samples.copy()
    failed.loc[0, "finish_reason"] = "error"
    assert token_hash(failed) == token_hash(samples.iloc[1:])
    assert token_hash(samples.iloc[:0]) is None


def test_processes_must_agree(make_samples: Make) -> None:
    samples = written(make_samples)
    both = pd.concat([samples.assign(process=0), samples.assign(process=1)], ignore_index=True)
    assert token_hash(both) == token_hash(samples)
    both.at[7, "token_ids"] = [99, 99]
    assert token_hash(both) is None
