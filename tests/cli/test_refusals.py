"""What is typed wrong is refused in one line that names the option, its value and what to do about it.

All but the last table are refused by one process that cannot import torch, transformers, pandas, scipy or
matplotlib: a command that needed one before it refuses would end with another message.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, is_present

HEAVY = ("torch", "transformers", "pandas", "scipy", "matplotlib")

CODE = f"""
import contextlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}:
            raise ImportError(f"{{name}} was imported")

sys.meta_path.insert(0, Refuse())
from functools import cache

import typer.main
from spsbench.cli.main import main

typer.main.get_command = cache(typer.main.get_command)
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""

VALUES = {
    "run, sweep-k": """
        --pair no-such-pair | --protocol no-such-protocol | --limit 0 | --samples 0 | --shard 5/4 |
        --until soon | --arms both spss | --k 65 , | --config nothing.yaml | --sampling loud |
        --temperature 0 nan | --top-p 1.5 | --top-k -1 |
        --max-new-tokens 0 | --chat-template maybe | --extract some | --seed -1 |
        --drafter nobody lookup:max_n=0 | --rule none | --policy none | --engine steam | --batch 0 1025 |
        --concurrency x | --dtype int3 int8+int8 float32+none auto:draft=half auto:draft=auto+int3 |
        --threads 0 4096 many | --backend jax |
        --tensor-parallel 0 2:draft=last 1:draft=first | --processes 1 0 many 65 -2 |
        --on slurm ray:// ray://host ray://host:port ray://:1 RAY | --fail-on speed |
        --expect x abc XYZ12345 00000000000000000000000000000000000000000000000000000000000000000 DEADBEEF
    """,
    "bench": """
        --threads 4096 0 | --batch x 0 2,b | --seconds 0 | --seed x | --device gpu | --backend jax |
        --pair no-such-pair | --alpha x | --context 0
    """,
    "paper": """
        --limit 0 | --samples x | --device gpu | --threads 0 | --backend jax | --dtype int3 | --seed -1 |
        --extract some | --resume nowhere
    """,
    "replay": "--k 0 | --drafter nobody | --rule lenience | --budget soon | --threads 0",
    "advise": """
        --drafter nobody | --limit x 1 | --sampling loud | --top-p 1.5 | --threads 0 | --pair no-such-pair |
        --dtype int3
    """,
    "simulate": """
        --cost -1 | --rule none | --fault none | --seed x | --contexts x | --operations x |
        --top-p 2 | --top-k -1
    """,
    "verify": "--engine steam | --policy none | --k x | --top-p 1.5 | --sampling loud | --threads 0",
    "audit nowhere.jsonl": "--top-p 1.5 | --temperature -1 | --dtype int3",
    "audit --engine worker:true": """
        --budget soon | --k x | --top-p 2 | --task no-such-task | --limit 0 | --max-new-tokens 0 |
        --threads 0
    """,
    "report": "--out x | --csv --latex",
    "trace text": "--sampling loud | --top-p 2 | --max-new-tokens 0 | --threads 0 | --device gpu",
    "distill --target x --out y": """
        --kind z | --tokens 0 | --minutes 0 | --seed x | --data nothing |
        --threads 0 | --device gpu
    """,
    "score .": "--n-workers 0 | --timeout x",
    "simulate --formula": "--rule lenience | --top-p 0.9",
}
"""Wrong values of an option, by command: the error begins with the option and has the value."""

SENTENCES: list[tuple[str, str] | tuple[str, str, int]] = [
    ("run, sweep-k no-such-task", "TASK"),
    ("run, sweep-k no-such-file.jsonl", "TASK", 3),
    ("run, sweep-k --until 5", "--until ... at most 50, a time as 90s or 5min, or ci=1%,5min, got 5"),
    ("run, sweep-k --k -1", "--k ... got -1"),
    ("run, sweep-k --set limit", "--set must be key=value"),
    ("run, sweep-k --set limits=3", "--set"),
    ("run, sweep-k --drafter model:x=1", "--drafter"),
    ("run, sweep-k --rule lenience:l=2", "--rule"),
    ("run, sweep-k --policy stop-below:tau=2", "--policy"),
    ("run, sweep-k --engine openai:nowhere", "--engine"),
    ("run, sweep-k --resume nowhere", "--resume: nowhere is not a run directory."),
    ("run, sweep-k --target only-one", "--draft"),
    ("run, sweep-k --temperature 0.7 --sampling greedy", "--temperature"),
    ("run, sweep-k --k 2 --k 4", "--k is given twice. Give --k once: --k 2,4."),
    ("run, sweep-k xsmu", "TASK: xsmu is unknown. Did you mean xsum?"),
    ("run, sweep-k --pair minni", "--pair: the pair minni is unknown. Did you mean mini?"),
    ("run, sweep-k --protocol pepper", "--protocol: the protocol pepper is unknown. Did you mean paper?"),
    ("run, sweep-k --set limmit=3", "--set limmit: the setting limmit is unknown. Did you mean limit?"),
    ("run, sweep-k --engine hf-asisted", "--engine: hf-asisted is unknown. Did you mean hf-assisted?"),
    ("run, sweep-k --sampling nuclear", "--sampling: nuclear is unknown. Did you mean nucleus?"),
    ("run, sweep-k --k 4.5", "--k ... got 4.5"),
    ("run, sweep-k --turns last", "--turns has no effect: the prompts of xsum have no turns. Leave it out."),
    ("run, sweep-k --set turns=own", "--set turns has no effect: the prompts of xsum have no turns."),
    ("advise --turns first", "--turns has no effect: the prompts of xsum have no turns. Leave it out."),
    ("run, sweep-k --extract none", "--extract has no effect: the prompts of xsum are not answered by code."),
    (
        "run, sweep-k --out .",
        "--out: . is not empty and holds no run (bad.jsonl, blank.jsonl, broken.jsonl).",
    ),
    ("run, sweep-k --out texts.jsonl", "--out: texts.jsonl cannot be written to (Not a directory)."),
    ("run, sweep-k --out texts.jsonl/run", "--out: texts.jsonl/run cannot be written to (Not a directory)."),
    ("paper --out .", "--out: . is not empty and holds no paper."),
    ("paper --resume .", "--resume: . holds no paper. Name the directory of one"),
    ("run, sweep-k --limit some", "--limit must be a whole number from 1 to 100,000,000, or ... got some"),
    ("run, sweep-k --device abacus", "--device must be auto, cpu, cuda, cuda:N or mps, got abacus"),
    ("run, sweep-k --arms sps --k 0", "--arms"),
    ("run, sweep-k --expect ''", "--expect"),
    ("run, sweep-k --on ''", "--on: the value is empty"),
    ("run, sweep-k --arms ''", "--arms: the value is empty"),
    ("run, sweep-k --target '' --draft b", "--target"),
    ("run, sweep-k --until ci=0%", "--until ... got ci=0%"),
    ("run, sweep-k --until ci=abc", "--until ... got ci=abc"),
    ("run, sweep-k --until ci=51%", "--until ... got ci=51%"),
    ("run, sweep-k --until ci=5% --k 0", "--until: ci=5% ... the run lacks an SpS arm"),
    ("run, sweep-k --until ci=5% --arms sps", "--until: ci=5% ... the run lacks an ArS arm"),
    ("run, sweep-k --until ci=5% --shard 1/2", "--until ... run without --shard"),
    ("run, sweep-k --until 60s --shard 1/2", "--until ... run without --shard"),
    ("run, sweep-k --until ci=5% --processes 2", "--until ... leave --processes out"),
    ("run, sweep-k --until 5min --processes 2", "--until ... leave --processes out"),
    ("run, sweep-k --until ci=5% --expect 0123456789abcdef", "--expect ... times decide how many prompts"),
    ("run, sweep-k --until 0s", "--until must be ci=X% ... a time as 90s or 5min, or ci=1%,5min, got 0s."),
    ("run, sweep-k --until '5 days'", "--until ... got 5 days"),
    ("run, sweep-k --until 5min,60s", "--until ... got 5min,60s"),
    ("run, sweep-k --until ci=5%,ci=6%", "--until ... got ci=5%,ci=6%"),
    ("run, sweep-k --until ci=5%,1h --batch 2", "--until: ci=5% is judged prompt by prompt"),
    ("run, sweep-k --batch 2 --engine hf-generate", "--batch ... hf-generate takes one sequence"),
    ("run, sweep-k --batch 2 --drafter early-exit:layers=2", "--batch ... runs a model for one sequence"),
    ("run, sweep-k --batch 2 --k adaptive", "--batch ... --policy"),
    ("run, sweep-k --batch 2 --sampling beam", "--batch ... a beam search takes one prompt"),
    ("run, sweep-k --batch 2 --drafter suffix:across=true", "--batch ... keeps"),
    *(
        (f"{command} --process {typed}", said)
        for command in ("run, sweep-k", "verify", "audit texts.jsonl", "trace x")
        for typed, said in (
            ("min_p=1", "--process min_p must be a number from 0 to below 1, got 1."),
            ("minp=0.1", "--process: the setting minp is unknown. Did you mean min_p?"),
            ("min_p", "--process: min_p has no value. Give min_p=VALUE"),
            ("min_p=0.1 --process min_p=0.2", "--process: min_p is given twice."),
        )
    ),
    ("bench --min-p 0.1", "No such option: --min-p"),
    ("run, sweep-k --processes 2 --set tensor_parallel=2", "--tensor-parallel: 2 ... with --processes"),
    ("run, sweep-k --engine openai:http://a --concurrency 1 --batch 2", "--batch: 2 has no effect"),
    (
        "run, sweep-k --engine openai:http://a --concurrency 1 --dtype auto:draft=auto+none",
        "--dtype: auto:draft=auto+none has no effect",
    ),
    ("run, sweep-k --engine hf-assisted --arms ars", "--arms: no arm remains"),
    ("run, sweep-k --engine my_engine.py", '--engine ... worker:"COMMAND"'),
    ("run, sweep-k --engine worker:", "--engine: no command"),
    ("run, sweep-k --engine worker:x --arms draft", "--arms: no arm remains"),
    ("run, sweep-k --drafter lookpu", "--drafter: lookpu is unknown. Did you mean lookup?"),
    (
        "run, sweep-k --drafter lookup:size=3",
        "--drafter: lookup has no option size. It has max_n, min_n, tree.",
    ),
    (
        "run, sweep-k --tree 4,2,1 --rule modified-rejection",
        "--rule: modified-rejection judges chains, and the drafts are trees. Choose sample-and-compare",
    ),
    ("sweep-k --tree 4,2,1", "--k: no loop drafts 1, 2, 4, 5, 6, 7 tokens: a static tree has its own depth."),
    ("run --tree 4,2,1 --k 2,4", "--k: no loop drafts 2, 4 tokens ... Give --k 3, or add chain or dynamic:N"),
    ("run --tree 4,2,1 --sampling beam", "--tree: a search with beams drafts no 4-2-1"),
    ("run --tree 4,2,1 --sampling nucleus,beam", "--tree: a search with beams drafts no 4-2-1"),
    ("run --tree chain+2 --sampling beam", "--tree: a search with beams drafts no 2"),
    ("run, sweep-k --tree 4,x --rule one-hot", "--tree: 4,x is not the shape of a draft."),
    ("run, sweep-k --tree 9,9 --rule one-hot", "--tree: 9,9 has 90 nodes; one forward takes 64."),
    ("run, sweep-k --tree 2 --rule one-hot --drafter ngram", "--tree: ngram drafts chains, and 2 is a tree."),
    (
        "run, sweep-k --tree 2 --rule one-hot --batch 2",
        "--batch: 2 sequences at once: a tree of drafts is for one sequence.",
    ),
    ("run, sweep-k --tree 2 --rule one-hot --engine graphed", "--tree: no arm drafts 2."),
    ("run, sweep-k --tree 2 --rule one-hot --top-k 1", "--tree: model:tree=2 needs more siblings than a row"),
    ("run, sweep-k --tree 2 --rule k-seq", "--rule: k-seq tests siblings by one law"),
    ("run, sweep-k --tree 1,1 --rule one-hot --drafter union", "--tree: 2 drafters of 2 tokens do not fit"),
    (
        "run, sweep-k --drafter lookup:max_n=much",
        "--drafter ... max_n=much is not valid. Give a whole number, e.g. 3.",
    ),
    ("run, sweep-k --drafter none.py:KIND", "--drafter: none.py does not exist", 3),
    ("run, sweep-k --rule lenience --fail-on lossless", "--fail-on: lenience is lossy by design"),
    (
        "run, sweep-k --fail-on parity --no-score",
        "--fail-on: parity compares scores, and --no-score computes",
    ),
    ("run, sweep-k --fail-on parity --arms sps", "--fail-on: parity compares SpS with ArS, and not both"),
    ("run, sweep-k --fail-on parity --k 0", "--fail-on: parity compares SpS with ArS, and not both"),
    ("run, sweep-k mt-bench --fail-on parity", "--fail-on: parity compares scores, and nothing scores"),
    ("run, sweep-k --processes 2 --expect short", "--expect: short is not a hash"),
    ("run, sweep-k --processes 2 --rule lenience --fail-on lossless", "--fail-on: lenience is lossy by"),
    ("run, sweep-k --k adaptive --drafter lookup", "--policy: no arm drafts by stop-below"),
    ("run, sweep-k --k adaptive --engine graphed", "--policy: no arm drafts by stop-below"),
    ("run, sweep-k missing.jsonl", "TASK: missing.jsonl does not exist", 3),
    ("run, sweep-k --k=2 --limit 3 --k=4", "--k is given twice. Give --k once: --k 2,4."),
    ("run, sweep-k --seed 1 --seed 1", "--seed is given twice. Give --seed once."),
    ("run, sweep-k --set tensor_parallel=2 --on ray", "--tensor-parallel: 2 is given together with --on"),
    ("run, sweep-k --processes 2 --on ray", "--on: ray is given together with --processes"),
    ("run, sweep-k --concurrency 1,2 --on ray", "--on: ray is given together with --concurrency"),
    ("run, sweep-k --sampling beam:width=0", "--sampling beam:width must be a whole number from 1 ... got 0"),
    ("run, sweep-k --sampling beam:width=-3", "--sampling beam:width must be a whole number ... -3"),
    ("run, sweep-k --sampling beam:width=two", "--sampling beam:width must be a whole number ... two"),
    ("run, sweep-k --sampling beam:draft_width=3", "--sampling beam:draft_width: 3 beams ... cannot hold"),
    ("run, sweep-k --sampling beam --temperature 0.7", "--temperature: 0.7 changes a distribution"),
    ("run, sweep-k --sampling beam --top-p 0.7", "--top-p: 0.7 changes a distribution"),
    ("run, sweep-k --sampling beam:penalty=inf", "--sampling beam:penalty must be a number, got inf"),
    (
        "run, sweep-k --sampling beam:early_stopping=soon",
        "--sampling beam:early_stopping must be true, false or never, got soon",
    ),
    ("run, sweep-k --sampling beam --drafter lookup", "--drafter: lookup cannot search with beams"),
    ("run, sweep-k --sampling beam --engine hf-generate", "--engine: hf-generate cannot search with beams"),
    ("run, sweep-k bad.jsonl", "TASK: line 2 of bad.jsonl has none of prompt", 3),
    (
        "run --engine openai:http://a --concurrency 1 --sampling beam",
        "--sampling: beam searches and samples nothing",
    ),
    ("run xsum humaneval", "Got unexpected extra argument(s) (humaneval) ... --help`."),
    ("run --allow-code-exec", "No such option: --allow-code-exec ... --help`."),
    ("run, sweep-k --batch 2 --until ci=5%", "--until"),
    ("advise --top-p 0.7 --sampling greedy", "--top-p"),
    ("advise --k 0", "--k needs at least one value above 0"),
    ("advise --budget 0", "--budget must be above 0"),
    ("advise --choose mean:memory=much", "--choose mean:memory must be a size"),
    ("advise no-such-task", "TASK"),
    ("advise --hardware h100", "--hardware: h100 is unknown. Did you mean h100-sxm?"),
    ("advise --hardware a40 --alpha 1", "--target is missing"),
    ("advise --hardware a40 --dtype float32", "--dtype: float32 is not modelled."),
    ("advise --hardware a40 --format sglang", "--format: only vllm takes K by batch size."),
    ("advise --hardware a40 --target x", "--draft is missing"),
    ("advise --hardware a40 --limit 4", "--limit: 4: nothing is run or read for hardware that is not here."),
    ("advise --alpha x", "--alpha: x is for hardware that is not here. Give --hardware."),
    ("advise --limit 4", "--limit: 4 prompts are too few to choose on and to judge on"),
    ("advise --choose median", "--choose: median is unknown. ... Choose from mean, p99"),
    ("advise --choose p99:disk=1GB", "--choose p99: the option disk is unknown. Choose from memory"),
    ("advise xsum --sampling beam", "--sampling: beam searches and samples nothing"),
    ("bench --k 0", "--k needs at least one value above 0"),
    ("bench --alpha 1.5", "--alpha must be between 0 and 1"),
    ("bench --alpha nowhere", "--alpha: nowhere is not a run directory"),
    ("bench --context 1k,x", "--context ... Give 256, 4k or 1k,4k,16k"),
    ("bench --context 64,1k --alpha 0.5", "--context: loops with synthetic acceptance run at one context"),
    ("bench --dtype int4", "--dtype: int4 is unknown. Choose from auto"),
    ("bench --target x", "--draft is missing"),
    ("bench --target gone.json", "--draft is missing. Give --target and --draft"),
    ("bench --target a.json --draft b", "--draft: b is a model, and the other one a configuration"),
    (
        "advise --hardware a40 --alpha 1 --target a --draft b --draft c",
        "--draft: c: the prediction is for one",
    ),
    ("bench --target a --draft b --pair mini", "--pair: --target and --draft are given too"),
    ("bench --batch 2 --context 16,32", "--context"),
    ("replay nowhere", "RUN"),
    ("replay nothing --rule sample-and-compare", "--rule: sample-and-compare cannot be replayed"),
    (
        "replay nothing --rule block --policy momentum",
        "--policy: policies are replayed under modified-rejection",
    ),
    ("replay nothing --tree 4,x", "--tree: 4,x is not the shape of a draft. Give siblings by depth"),
    ("replay nothing --tree 9,9", "--tree: 9,9 has 90 nodes"),
    ("replay nothing --tree dynamic:24", "--tree: dynamic:24 has a dynamic tree ... Give a static tree"),
    (
        "replay nothing --tree 2,1 --drafter lookup",
        "--tree: no tree of lookup can be replayed. Add --drafter",
    ),
    ("replay nothing --tree 2,1 --rule k-seq", "--rule: k-seq cannot be replayed"),
    ("replay nothing --tree 2,1 --policy momentum", "--tree: a static tree has its own depth"),
    ("replay nothing --rule one-hot", "--rule: one-hot cannot be replayed"),
    ("advise xsum --tree dynamic:8", "--tree: dynamic:8 has a dynamic tree"),
    ("advise xsum --tree 2,1 --drafter lookup", "--tree: no tree of lookup can be replayed"),
    ("replay --times nowhere", "--times", 3),
    ("replay nothing --policy stop-bellow", "--policy: stop-bellow is unknown. Did you mean stop-below?"),
    ("replay nothing --policy stop-below:tau=2", "--policy: stop-below:tau must be between 0 and 1, got 2."),
    ("replay nothing --policy stop-below:taw=1", "--policy: stop-below has no option taw."),
    ("replay nothing --policy nowhere.py:KIND", "--policy: nowhere.py does not exist", 3),
    ("simulate --rule block --tree 2", "--rule: block judges chains, and the drafts are trees."),
    ("simulate --alpha 1.5", "--alpha must be between 0 and 1, got 1.5."),
    ("simulate --k 0 --out out", "--k: a simulated loop drafts"),
    ("simulate --tokens 0", "--tokens must be a"),
    ("simulate --source dirichlet:concentration=0", "--source dirichlet:concentration must be between"),
    ("simulate --source ngram:vocabulary=1", "--source ngram:vocabulary must be a"),
    ("simulate --source dirichlet:sharpness=-1", "--source dirichlet:sharpness ... and 50, got -1."),
    ("simulate --source dirichlet:variation=1", "--source dirichlet:variation ... and 0.99, got 1."),
    ("simulate --source temperature:stay=2", "--source temperature:stay ... and 1, got 2."),
    ("distill --target x --out y --kind model:layers=0", "--kind model:layers must be a whole number"),
    ("distill --target x --out y --kind model:vocabulary=-1", "--kind model:vocabulary must be a whole"),
    ("distill --target x --out y --kind eagle:layers=2", "--kind eagle: the option layers is unknown."),
    ("simulate --temperature 0", "--temperature: a greedy target"),
    ("simulate --formula --alpha 1.1 --cost 0", "--alpha"),
    ("simulate --alpha 0", "--alpha: no draft is solved for at 0, where nothing is accepted."),
    ("simulate --alpha 0.5 --source dirichlet:concentration=3", "--alpha: both say"),
    ("simulate --source dirichlet:draft_temperature=1", "--source dirichlet: the option draft_temperature"),
    ("simulate --source bigram", "--source: bigram is unknown. Did you mean ngram?"),
    ("simulate --contexts 0", "--contexts must be whole numbers from 1, got 0."),
    (
        "simulate --rule lecture-test",
        "--rule: lecture-test is a planted fault ... Give --fault lecture-test.",
    ),
    ("simulate --rule lenience:l=2", "--rule: lenience:l must be above 0"),
    ("simulate --fault stale-cache", "--fault: stale-cache is unknown."),
    ("simulate --fault no-residual --rule lenience", "--fault: no-residual is a fault of"),
    ("simulate --formula --alpha 0.5 --cost 0.1 --k four", "--k"),
    ("verify no-such-task", "TASK"),
    ("verify --control inverted", "--control: inverted is unknown. Did you mean inverted-ratio?"),
    ("verify --effort huge", "--effort: huge is unknown"),
    ("verify --drafter lookpu", "--drafter: lookpu is unknown. Did you mean lookup?"),
    ("verify --rule leniense", "--rule: leniense is unknown. Did you mean lenience?"),
    ("verify --drafter lookup --control lenience", "--drafter: lookup is given together with"),
    ("verify --rule lenience --control all", "--rule: lenience is given together with --control"),
    ("verify xsum --sampling beam", "--sampling: beam searches and samples nothing"),
    ("verify --engine worker:true --control all", "--control changes how the built-in sampler is tested"),
    ("verify --engine worker:true --temperature 0.8", "--temperature changes how the built-in"),
    ("verify --engine worker:true --rule block --k 4", "--rule changes how the built-in"),
    ("verify --engine worker:true --dtype int8", "--dtype changes how the built-in"),
    ("verify --engine worker:true --dtype auto:draft=int4", "--dtype changes how the built-in"),
    ("verify --engine worker:true --tensor-parallel 2", "--tensor-parallel changes how"),
    ("verify --engine worker:true --process repetition_penalty=1.3", "--process changes how"),
    ("verify bad.jsonl", "TASK: line 2 of bad.jsonl has none of prompt", 3),
    ("audit", "SAMPLES, --engine, --follow: none is given"),
    ("audit nowhere.jsonl", "SAMPLES", 3),
    ("audit texts.jsonl --engine worker:x", "SAMPLES, --engine, --follow: several are given"),
    ("audit --follow texts.jsonl --engine worker:x", "SAMPLES, --engine, --follow: several are given"),
    ("audit --follow nowhere.jsonl", "--follow: nowhere.jsonl is not a file.", 3),
    ("audit --follow bad.jsonl --every 0", "--every must be a whole number from 1, got 0"),
    ("audit --follow bad.jsonl --webhook host", "--webhook must be a URL, got host"),
    ("audit --follow bad.jsonl --texts 9", "--texts is for texts that are drawn from an engine"),
    ("audit texts.jsonl --every 9", "--every: 9 is for a log that is followed. Add --follow FILE"),
    ("audit --engine wroker:x", "--engine: wroker:x is unknown"),
    ("audit --engine worker:", "--engine: no command follows the colon"),
    ("audit --engine worker:x --bound 0", "--bound must be a share between 0 and 1, got 0"),
    ("audit --engine worker:x --bound 2%x", "--bound must be a share between 0 and 1, got 2%x"),
    ("audit --engine worker:x --texts 0", "--texts must be a whole number from 1, got 0"),
    ("audit --engine worker:x --arms hf", "--arms: hf is unknown"),
    ("audit --engine worker:x --in-flight 0", "--in-flight must be whole numbers from 1 to 64, got 0"),
    ("audit --engine worker:x --in-flight 1,x", "--in-flight must be whole numbers from 1 to 64, got 1,x"),
    ("audit --engine worker:x --in-flight 65", "--in-flight must be whole numbers from 1 to 64, got 65"),
    (
        "audit --engine worker:x --dtype float16",
        "--dtype is for a file of texts; those of worker:x are re-scored in float32",
    ),
    ("verify --engine worker:x --dtype float16", "--dtype changes how the built-in sampler"),
    ("audit --engine worker:x --prefix-cache maybe", "--prefix-cache: maybe is unknown. Choose from on, off"),
    ("audit --engine worker:x --k 0", "--k needs at least one value above 0"),
    ("audit --engine worker:x --temperature 1,hot", "--temperature"),
    ("audit --engine openai:http://localhost:1 --k 4", "--k ... a server has its own models and lookahead"),
    ("audit nowhere.jsonl --dtype auto:samples=int4", "--dtype auto:samples: int4 is unknown. Choose from"),
    ("audit nowhere.jsonl --dtype auto:texts=int4", "--dtype auto: the option texts is unknown. Choose from"),
    ("audit nowhere.jsonl --in-flight 4", "--in-flight is for texts that are drawn from an engine"),
    ("audit nowhere.jsonl --weights q8_0", "--weights is for texts that are drawn from an engine"),
    ("audit nowhere.jsonl --prefix-cache on", "--prefix-cache is for texts that are drawn"),
    ("audit nowhere.jsonl --repro", "--repro is for texts that are drawn from an engine"),
    ("audit --engine worker:x --dtype auto:samples=float16", "--dtype is for a file of texts"),
    ("audit --engine worker:x --weights int8", "--weights: worker:x is not given int8 weights"),
    ("audit --engine openai:http://localhost:1 --weights q4_k", "--weights ... is not given q4_k weights"),
    ("audit nowhere.jsonl --seed a", "--seed must be a whole number"),
    ("compare a b", "RUN"),
    ("compare a b --gate x", "--gate"),
    ("report --csv --json", "--csv is given together with --json"),
    ("report", "RUN: results holds no run."),
    ("report --html --html", "--html is given twice. Give --html once."),
    ("report nowhere --quiet --json", "RUN: nowhere"),
    ("distill", "--target"),
    ("score nowhere", "SAMPLES", 3),
    ("score . --k 1", "--k"),
    ("score .", "RUN: . is not a run directory"),
    ("merge nowhere --out x", "SHARD"),
    ("merge shard-1", "Missing option '--out' ... --help`."),
    ("sweep-k --engine openai:http://localhost:9 --concurrency 1", "--k"),
    ("sweep-k --k 7..0", "--k ... got 7..0"),
    ("sweep-k bad.jsonl", "TASK: line 2 of bad.jsonl has none of prompt", 3),
    ("rnu", "No such command 'rnu'. Did you mean 'run'?"),
    ("theory", "No such command 'theory'"),
    ("judge", "No such command 'judge'"),
    ("tasks", "No such command 'tasks'"),
    ("pairs", "No such command 'pairs'"),
    ("protocols", "No such command 'protocols'"),
    ("list models", "WHAT: models is unknown. Choose from tasks, pairs"),
    ("list drafter", "WHAT: drafter is unknown. Did you mean drafters?"),
    ("get mini", "NAME: mini is part of spsbench"),
    ("get qwen3", "NAME ... hf download Qwen/Qwen3-8B"),
    ("get smollm3", "NAME ... the pair or engine smollm3 is unknown. Did you mean smollm2?"),
    ("trace ' '", "PROMPT: there is nothing to continue"),
    ("trace x --k 0", "--k must be one number from 1"),
    ("trace x --k 2,4", "--k must be one number from 1"),
    ("trace x --sampling nucleus,greedy", "--sampling: one sampling can be shown"),
    ("trace x --pair nobody", "--pair: the pair nobody"),
    ("trace x --sampling beam", "--sampling: beam searches and samples nothing"),
    ("paper --limit 1 --pair minni", "--pair: the pair minni is unknown. Did you mean mini?"),
    ("paper --limit 1 --of leviatan", "--of: the paper leviatan is unknown. Did you mean leviathan"),
    ("paper --limit 1 --of leviathan --samples 3", "--samples"),
    ("paper --limit 1 --of leviathan --no-score", "--no-score"),
    ("paper --limit 1 --of leviathan --target embedded:mini/target", "--draft ... --draft small=MODEL"),
    ("paper --limit 1 --of leviathan --target a --pair mini --draft b", "--target"),
    ("paper --limit 1 --of leviathan --draft a=x --draft a=y", "--draft: a is given twice"),
    ("paper --limit 1 --of leviathan --draft a=", "--draft: a= is not valid. Give NAME=VALUE"),
    ("paper --limit 1 --of leviathan --draft unigram=embedded:mini/draft", "--draft ... another name"),
    ("paper --limit 1 --of leviathan --draft org/bigram", "--draft ... another name"),
    ("paper --limit 1 --draft embedded:mini/draft", "--draft"),
    ("paper --limit 1 --target embedded:mini/target", "--target ... --of"),
    ("paper --of leviathan --task nothing", "TASK: nothing"),
    ("paper --of leviathan --draft =", "--draft"),
]
"""Command lines, how the error begins and what else it says behind " ... ", and the exit code if not 2."""

MODELS = "--target ./no --draft ./no"
"""Two models that are not there."""

ELSEWHERE: list[tuple[str, str] | tuple[str, str, int]] = [
    *(
        (f"{command} {MODELS}", "--target: ./no is not a model folder.", 3)
        for command in (
            *(
                "run, sweep-k",
                "trace x",
                "bench",
                "advise",
                "verify",
                "replay texts.jsonl",
                "audit texts.jsonl",
            ),
            *("audit --engine worker:x", "verify --engine worker:x", "audit --follow texts.jsonl"),
            *("run field", "sweep-k --processes 2", "run --on ray"),
        )
    ),
    (
        "run --engine openai:http://a --concurrency 1 --target ./no",
        "--target: ./no is not a model folder.",
        3,
    ),
    ("paper --of leviathan --target ./no --draft small=./no", "--target: ./no is not a model folder.", 3),
    ("distill --target ./no --out y", "--target: ./no is not a model folder.", 3),
    ("distill --target package:nope --out y", "--target: the packaged model nope is unknown."),
    ("distill --target org/model --out y", "--target: org/model is not on this machine", 3),
    ("distill --target embedded:mini-t5/target --out y", "--target ... is an encoder-decoder"),
    ("run --pair gpt2", "--target ... openai-community/gpt2-xl ... --pair mini", 3),
    (
        "trace x --target empty --draft empty",
        "--target: empty is not a model folder: it has no config.json.",
        3,
    ),
    ("bench --target 'a b' --draft c", "--target: a b is neither a folder nor a name of the hub."),
    ("paper --limit 1 --of leviathan --draft embedded:mini/none", "--draft: embedded:mini/none", 3),
    ("paper --limit 1 --of leviathan --threads 0", "--threads"),
    ("bench --context 64,99999", "--context: 99999 tokens and 57 after them are needed"),
    ("bench --context 99999", "--context: 99999 tokens and 57 after them are needed"),
    ("bench --target a.json --draft a.json", "--target: a.json does not exist", 3),
    ("bench --pair mini-t5 --context 16,32", "--context ... Give one number"),
    (
        "trace x --max-new-tokens 9999",
        "--max-new-tokens: an output ... up to 10003 tokens, and the window 4096.",
    ),
    ("run, sweep-k --data nothing.jsonl", "--data: nothing.jsonl", 3),
    ("run, sweep-k --id nobody", "--id: xsum-mini (synthetic) has no prompt nobody."),
    ("run, sweep-k --limit 500-600", "--limit: 500-600 begins after the last of the 400 prompts"),
    ("verify --data nothing.jsonl", "--data: nothing.jsonl", 3),
    ("advise --data nothing.jsonl", "--data: nothing.jsonl", 3),
    ("run good.jsonl --data bad.jsonl", "--data: bad.jsonl is given together with"),
    (
        "distill --target embedded:mini/target --out y --data bad.jsonl",
        "--data: line 2 of bad.jsonl has none",
        3,
    ),
    ("distill --target embedded:mini/target --out y --evaluated nobody", "--evaluated: nobody is unknown."),
    *(
        (f"{command} {broken}", f"{argument}: line 1 of {broken}{said}")
        for command, argument in (("replay", "RUN"), ("audit", "SAMPLES"))
        for broken, said in (
            ("broken.jsonl", " is not JSON."),
            ("half.jsonl", ": it has neither completion_ids nor completion."),
            ("wrong.jsonl", ": prompt_ids is not a list of whole numbers."),
            ("cold.jsonl", ": temperature: input should be greater than 0, got -1."),
        )
    ),
    ("audit blank.jsonl", "SAMPLES: blank.jsonl is empty."),
    ("replay blank.jsonl", "RUN: blank.jsonl has 0 tokens of ArS; a prediction needs at least 200."),
    ("replay texts.jsonl", "RUN: texts.jsonl has 1 tokens of ArS; a prediction needs at least 200."),
    ("replay texts.jsonl --temperature -1", "--temperature must be a number from 0, got -1"),
    ("audit texts.jsonl --draft x", "--target is missing beside --draft x. Give both models"),
    ("audit texts.jsonl --target x --pair mini", "--target: x is given together with --pair"),
    *(
        (f"{command} /dev/null/x", f"{command.split()[-1]}: /dev/null/x cannot be written to")
        for command in (
            *("run --out", "advise --out", "simulate --out", "paper --out", "audit --engine worker:x --out"),
            *("distill --target embedded:mini/target --out", "audit --follow texts.jsonl --out"),
            "distill --target embedded:mini/target --out y --corpus",
        )
    ),
    ("audit --engine worker:x --evidence /dev/null/x/y", "--evidence: /dev/null/x cannot be written to"),
    ("run --set trace=-1", "--set trace must be a whole number from 0 to 100,000,000, got -1."),
    ("simulate --source ngram:dependence=1", "--source ngram:dependence: 1 leaves no room"),
    ("simulate --contexts 64", "--contexts: --source dirichlet takes 1 to 32, got 64."),
    (
        "simulate --contexts 64 --source dirichlet:vocabulary=48",
        "--contexts ... 1 to 48, got 64. ... a vocabulary of 48 tokens has no more",
    ),
    (
        "simulate --contexts 600 --source dirichlet:vocabulary=1000 --out out",
        "--contexts ... 1 to 512, got 600. ... from 1 to 512.",
    ),
    ("simulate --contexts 1 --source ngram", "--contexts: --source ngram takes 2 to 16, got 1."),
    (
        "simulate --source dirichlet:vocabulary=100000 --contexts 64",
        "--source dirichlet:vocabulary: 64 contexts of 100000",
    ),
]
"""The same where models, data, files or folders decide that are not there, or are not what is needed."""

WITH_MODELS: list[tuple[str, str] | tuple[str, str, int]] = [
    ("run --max-new-tokens 999999", "--max-new-tokens: a context window"),
    ("run --dtype auto+int8 --engine hf-generate", "--backend: hf-generate runs over torch"),
    ("run --device-map auto --backend onnxruntime", "--device-map: auto spreads a model"),
    ("run --device-map auto --batch 2", "--device-map: a batch of 2 is decoded on one device"),
    ("run --device-map gone.json", "--device-map: gone.json is neither a strategy"),
    (
        "run --device-map auto --engine hf-generate,hf-assisted",
        "--device-map: hf-assisted runs on one device",
    ),
    ("run --batch 2 --pair mini-t5", "--batch: embedded:mini-t5/target is an encoder-decoder"),
    ("run --process repetition_penalty=1.3 --pair mini-t5", "--process repetition_penalty: for an encoder"),
    ("run --batch 1,3 --limit 2", "--batch: batches of 3 are never full with 2 sequences"),
    ("run --limit 1 --shard 2/2", "--shard: shard 2/2 of 1 prompts is empty"),
    ("run --engine eager,worker:x --dtype int8", "--dtype: int8 weights are quantised by spsbench"),
    ("run --until ci=5% --on ray --out new", "--until: ci=5% ends a run after a prompt"),
    ("run --until 60s --on ray --out new", "--until: 60s ends a run after a prompt"),
    (
        "run --drafter suffix:across=true --on ray --out new",
        "--on: suffix:across=true proposes what earlier prompts",
    ),
    (
        "run --engine eager,worker:'true' --on ray --out new",
        "--on: worker:true is started, stopped and logged",
    ),
    (
        "run --device-map auto --on ray --out new",
        "--device-map: auto is given together with --on, whose workers",
    ),
    ("run --sampling beam:width=9999", "--sampling: 9999 beams are more than the vocabulary's"),
    ("run --sampling beam:draft_width=9999", "--sampling: 9999 beams are more than"),
    (
        "run --sampling beam --dtype int8",
        "--backend ... over torch, and the target's weights are rounded to int8",
    ),
    ("simulate --alpha 0.01 --out out", "--alpha: 0.01 cannot be reached"),
    ("advise --limit 8 --drafter heads", "--drafter ... was made for package:smollm2"),
    ("run chat.jsonl", "TASK ... there is no chat template"),
]
"""The same where a tokenizer, the device or a solver decides: nothing is loaded for it."""

FILES = {
    "texts.jsonl": '{"prompt_ids": [5], "completion_ids": [6]}\n',
    "good.jsonl": '{"prompt": "A"}\n',
    "bad.jsonl": '{"prompt": "A"}\n{"question": "B"}\n',
    "chat.jsonl": '{"messages": [{"role": "user", "content": "Hi"}]}\n',
    "broken.jsonl": "{\n",
    "half.jsonl": '{"prompt": "A"}\n',
    "wrong.jsonl": '{"prompt_ids": "A", "completion_ids": [6]}\n',
    "cold.jsonl": '{"prompt": "A", "completion": "B", "sampling": {"temperature": -1}}\n',
    "blank.jsonl": "\n",
}
"""Files in the folder in which they are typed."""

EMPTY = "empty"
"""A folder beside them."""


def lines_of(typed: str) -> list[str]:
    """``run, sweep-k X`` is two command lines."""
    both = "run, sweep-k"
    return [typed.replace(both, name, 1) for name in both.split(", ")] if typed.startswith(both) else [typed]


def cases() -> Iterator[tuple[str, str, int]]:
    """Command lines of all but the last table, what the errors say, and exit codes."""
    for command, options in VALUES.items():
        for flag, *values in map(str.split, options.split("|")):
            for value in values:
                yield from (
                    (line, f"{flag} ... {value}", 2) for line in lines_of(f"{command} {flag} {value}")
                )
    for typed, said, *code in (*SENTENCES, *ELSEWHERE):
        yield from ((line, said, code[0] if code else 2) for line in lines_of(typed))


EARLY = [case for case in dict.fromkeys(cases()) if is_present(case[0])]


def laid_out(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / EMPTY).mkdir()
    return folder


def check(out: str, err: str, said: str) -> None:
    """One error and no result, as announced."""
    *_, last = err.splitlines()
    begins, *others = f"error: {said}".split(" ... ")
    assert last.startswith(begins), err
    assert all(words in last.removeprefix(begins) for words in others), err
    assert "fault of spsbench" not in err
    assert "Loading" not in err
    assert out == ""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Any]]:
    """Exit code, stdout and stderr of every command line; they leave nothing behind."""
    folder = laid_out(tmp_path_factory.mktemp("early"))
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input="".join(f"{json.dumps(shlex.split(typed))}\n" for typed, *_ in EARLY),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PATH": "/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert len(done.stdout.splitlines()) == len(EARLY), done.stderr
    assert {path.name for path in folder.iterdir()} == {EMPTY, *FILES}
    return {
        typed: json.loads(line) for (typed, *_), line in zip(EARLY, done.stdout.splitlines(), strict=True)
    }


@pytest.mark.parametrize(("typed", "said", "code"), EARLY, ids=[typed for typed, *_ in EARLY])
def test_it_is_refused_before_torch_is_imported(
    typed: str, said: str, code: int, answers: Mapping[str, Sequence[Any]]
) -> None:
    found, out, err = answers[typed]
    assert found == code, err
    check(out, err, said)


LATE = [(typed, said, code[0] if code else 2) for typed, said, *code in WITH_MODELS]


@pytest.mark.parametrize(("typed", "said", "code"), LATE, ids=[typed for typed, *_ in LATE])
def test_it_is_refused_before_a_model_is_loaded(
    typed: str, said: str, code: int, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("models.loading.load", "models.loading.random_model"):
        monkeypatch.setattr(f"spsbench.{name}", None)
    monkeypatch.setattr("spsbench.parts.whatif.simulate.study.simulate", None)
    laid_out(tmp_path)
    done = cli(*shlex.split(typed))
    assert done.code == code, done.err
    check(done.out, done.err, said)
    assert {path.name for path in tmp_path.iterdir()} == {EMPTY, *FILES}


def test_the_blocker_blocks() -> None:
    """The control: a command that does need torch cannot run there."""
    typed = json.dumps(["run", "--limit", "1", "--quiet"])
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=typed, capture_output=True, text=True, check=False
    )
    code, _, err = json.loads(done.stdout)
    assert code == 1
    assert "was imported" in err
