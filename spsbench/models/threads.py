"""How many CPU threads suit a model, by its size: no clock decides, so that every process decides alike."""

from __future__ import annotations

import math

import torch

from spsbench.models.causal_lm import CausalLM

# A product is divided among threads as long as a thread's part outweighs their meeting. The embedded
# target (6.7 million) takes 2.2 ms a token on one thread and 1.6 on two; at 1 million two gain nothing.
_PARAMETERS_PER_THREAD = 3_000_000

# Torch's own choice as this process began: OMP_NUM_THREADS, or the cores.
_MOST = torch.get_num_threads()


def suitable_threads(model: CausalLM) -> int:
    """One thread for every three million parameters, at most as many as torch would use by itself."""
    parameters: int = sum(parameter.numel() for parameter in model.model.parameters())
    return max(1, min(math.ceil(parameters / _PARAMETERS_PER_THREAD), _MOST))
