"""A head of ``spsbench distill --kind eagle3``: the speculators package's own forward against ours.

    python -m benchmarks.speculators_parity HEAD --python ENVIRONMENT/bin/python

``ENVIRONMENT`` has ``pip install speculators``. Its ``from_pretrained`` loads the folder, and its model is
given the target's states and the tokens of a text. The logits at two depths, the first on the target's
states and the second on the head's own, are compared with those of ``heads:from=HEAD``. A forward with two
norms exchanged shows that a difference would be seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TEXT = "def is_prime(n):\n    for i in range(2, n):\n        if n % i == 0:\n            return False\n"


def expected(folder: Path) -> dict[str, Tensor]:
    """Tokens [n], the target's states [n, hidden] before its final norm, and our logits at both depths."""
    from spsbench.models.heads import load_chain
    from spsbench.models.loading import load
    from spsbench.models.source import find
    from spsbench.models.speculators import read_speculators

    draft = read_speculators(folder, "HEAD")
    assert draft is not None, "HEAD has no config.json in the format of speculators"
    source = find(draft.target.name, None, "--target")
    target: Any = load(source, "float32", torch.device("cpu"), source.tokenizer.size, "--target", "torch")
    ids = torch.tensor(source.tokenizer.encode(TEXT, special=False))
    seen: list[Tensor] = []
    hook = target.model.get_decoder().norm.register_forward_hook(
        lambda part, args, output: seen.extend((args[0][0], output[0]))
    )
    with torch.inference_mode():
        target.model(input_ids=ids[None], use_cache=False)
        hook.remove()
        chain = load_chain(draft, target, 0, "HEAD")
        first, second = [], []
        for place in range(len(ids) - 2):
            chain.rollback(place)
            row, own = chain.extend(ids[place + 1 : place + 2], chain.combined(seen[1][place : place + 1]))
            first.append(row[0].clone())
            second.append(chain.extend(ids[place + 2 : place + 3], own.clone())[0][0].clone())
    kept = torch.from_numpy(draft.ids_below(target.vocab_size))
    rows = {"first": torch.stack(first)[:, kept], "second": torch.stack(second)[:, kept]}
    return {"ids": ids, "states": seen[0]} | {name: part.contiguous() for name, part in rows.items()}


def inside(folder: Path, given: Path) -> dict[str, Any]:
    """In the other environment: the package's own logits, and how far they are from ours."""
    from importlib.metadata import version

    from speculators.config import SpeculatorModelConfig
    from speculators.models.eagle3 import Eagle3DraftModel

    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(str(folder), config=config, dtype=torch.float32).eval()
    told = load_file(given)
    n = len(told["ids"])

    def far() -> list[float]:
        heard: list[Tensor] = []
        hook = model.lm_head.register_forward_hook(lambda part, args, output: heard.append(output[0]))
        with torch.inference_mode():
            # The package's entry t has the state of token t and the token after it.
            model(
                hidden_states=told["states"][None, :-1],
                input_ids=told["ids"][None, 1:],
                document_ids=torch.zeros(1, n - 1, dtype=torch.int64),
                ttt_steps=2,
            )
        hook.remove()
        ours = (told["first"], told["second"])
        return [float((one[: n - 2] - other).abs().max()) for one, other in zip(heard, ours, strict=True)]

    found = far()
    layer = model.layers[0]
    layer.input_layernorm, layer.hidden_norm = layer.hidden_norm, layer.input_layernorm
    versions = {name: version(name) for name in ("speculators", "torch", "transformers")}
    largest = float(told["first"].abs().max())
    return versions | {"entries": n - 2, "largest logit": largest, "difference": found, "exchanged": far()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("head", type=Path)
    parser.add_argument("--python", required=True)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        given = Path(folder) / "given.safetensors"
        save_file(expected(args.head), given)
        subprocess.run([args.python, __file__, str(args.head), str(given)], check=True)


if __name__ == "__main__":
    if "--python" in sys.argv or "--help" in sys.argv:
        main()
    else:
        print(json.dumps(inside(Path(sys.argv[1]), Path(sys.argv[2])), indent=2))
