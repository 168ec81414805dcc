"""Number of CPU threads for a model, by its size and not by a timing: the same in every process."""

from __future__ import annotations

import math

import torch

from spsbench.models.causal_lm import CausalLM

# Another thread pays while its share of a product outweighs the synchronization. The embedded target
# (6.7 million) takes 2.2 ms a token on one thread and 1.6 on two; at 1 million two gain nothing.
_PARAMETERS_PER_THREAD = 3_000_000

# Torch's default at the start of this process: OMP_NUM_THREADS, or the number of cores.
_MOST = torch.get_num_threads()


def suitable_threads(model: CausalLM) -> int:
    """One thread per three million parameters, at most torch's default."""
    parameters: int = sum(parameter.numel() for parameter in model.model.parameters())
    return max(1, min(math.ceil(parameters / _PARAMETERS_PER_THREAD), _MOST))
