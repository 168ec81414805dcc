"""A run in the schema of Every Eval Ever (0.3.0): a record for each arm, and its samples where they are
right or wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from spsbench.base import make_folder, write_json, write_rows
from spsbench.parts.export.messages import NoBinaryScore

if TYPE_CHECKING:
    from spsbench.parts.export.exported import ArmSamples, ExportedRun

SCHEMA = "0.3.0"

BOUNDS = dict.fromkeys(("rouge", "pass@", "exact_match", "final_number"), (0.0, 1.0)) | {"bleu": (0.0, 100.0)}
"""Least and largest value of a metric whose name begins so."""

BINARY = ("passed", "exact_match", "final_number")
"""Scores of an output that is right (1) or wrong (0)."""


def write(run: ExportedRun, folder: Path) -> tuple[list[Path], list[NoBinaryScore]]:
    """Write the record of each arm, and its samples; return the files, and why samples are left out."""
    now_s = int(time.time())
    paths = list[Path]()
    left_out = list[NoBinaryScore]()
    for arm in run.arms:
        record = _record(run, arm, now_s)
        place = _place(run, arm)
        path = folder / f"{place}.json"
        make_folder(path.parent, "--out")
        if (score := _binary_score(arm)) is None:
            left_out.append(NoBinaryScore(arm.name))
        else:
            samples = path.with_name(f"{path.stem}_samples.jsonl")
            rows = list(_instances(run, arm, record["evaluation_id"], score))
            write_rows(samples, rows)
            record["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": f"{place}_samples.jsonl",
                "hash_algorithm": "sha256",
                "checksum": sha256(samples.read_bytes()).hexdigest(),
                "total_rows": len(rows),
            }
            paths.append(samples)
        paths.append(path)
        write_json(path, record)
    return paths, left_out


def _place(run: ExportedRun, arm: ArmSamples) -> str:
    """Where an arm's record belongs, without its ending: ``data/BENCHMARK/DEVELOPER/MODEL/UUID``.

    The UUID is the same each time that the run is exported.
    """
    developer, _, model = str(_model(run)["id"]).rpartition("/")
    named = [str(run.run.get("task")), developer or "unknown", model]
    seed = f"{run.summary['token_sha256']}:{run.name}:{arm.name}"
    identifier = UUID(bytes=sha256(seed.encode()).digest()[:16], version=4)
    # A name that begins with a dot could lead out of the folder.
    parts = [re.sub("[^A-Za-z0-9._-]+", "-", name).lstrip(".") or "unknown" for name in named]
    return "/".join(["data", *parts, str(identifier)])


def _record(run: ExportedRun, arm: ArmSamples, now_s: int) -> dict[str, Any]:
    """The aggregate record of an arm; the bounds of a metric are null where they are not known."""
    info, model = run.run, _model(run)
    tags = {str(name): str(text) for name, text in (info.get("tags") or {}).items()}
    task = str(info.get("task_label") or info.get("task"))
    version = (info.get("environment") or {}).get("spsbench")
    fields = {
        "schema_version": SCHEMA,
        "evaluation_id": f"{info.get('task')}/{model['id']}/{arm.name}/{now_s}",
        "evaluation_timestamp": info.get("created_utc"),
        "retrieved_timestamp": str(now_s),
        "source_metadata": {
            "source_name": "spsbench",
            "source_type": "evaluation_run",
            "source_organization_name": tags.get("organisation", "unknown"),
            "evaluator_relationship": "other",
            "additional_details": {"run": run.name, **tags},
        },
        "eval_library": {"name": "spsbench", "version": str(version or "unknown")},
        "model_info": model | {"inference_engine": {"name": str(arm.entry["engine"])}},
        "evaluation_results": [
            _metric_record(run, arm, task, metric, value)
            for metric, value in arm.row["metrics"].items()
            if value is not None
        ],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _metric_record(run: ExportedRun, arm: ArmSamples, task: str, metric: str, value: float) -> dict[str, Any]:
    least, most = next((ends for start, ends in BOUNDS.items() if metric.startswith(start)), (None, None))
    recorded = (run.run.get("metrics") or {}).get(metric) or {}
    interval = (arm.row.get("metric_intervals") or {}).get(metric)
    uncertainty: dict[str, Any] = {"num_samples": arm.row["prompts"]}
    if interval is not None and interval["low"] is not None and interval["high"] is not None:
        uncertainty["confidence_interval"] = {
            "lower": interval["low"],
            "upper": interval["high"],
            "confidence_level": 0.95,
            "method": "over prompts",
        }
    longest = (run.run.get("identity") or {}).get("max_new_tokens")
    return {
        "evaluation_name": f"{run.run.get('task')}/{metric}",
        "source_data": _source_data(run, task),
        "metric_config": {
            "evaluation_description": task,
            "metric_id": metric,
            "metric_name": metric,
            "lower_is_better": not recorded.get("higher_is_better", True),
            "score_type": "continuous",
            "min_score": least,
            "max_score": most,
        },
        "score_details": {"score": value, "uncertainty": uncertainty, "details": _speed_details(arm)},
        "generation_config": {
            "generation_args": arm.sampling | ({"max_tokens": longest} if longest else {}),
            "additional_details": {
                name: str(arm.entry[name])
                for name in ("method", "k", "drafter", "rule", "policy", "batch")
                if arm.entry.get(name) is not None
            },
        },
    }


def _speed_details(arm: ArmSamples) -> dict[str, str]:
    """What the schema has no place for: time per token and speedup over ArS, with its 95% interval."""
    row = arm.row
    figures: dict[str, float | None] = {"ms_per_token": row["ms_per_token"]}
    if (speedup := row["speedup"]) is not None and row["method"] != "ars":
        figures |= {
            "speedup": speedup["ratio"],
            "speedup_low": speedup["low"],
            "speedup_high": speedup["high"],
        }
    if (acceptance := row["acceptance"]) is not None:
        figures["mean_acceptance_length"] = acceptance["mean_acceptance_length"]
    return {name: f"{value:.6g}" for name, value in figures.items() if value is not None}


def _model(run: ExportedRun) -> dict[str, Any]:
    models = run.run.get("models") or (run.run.get("identity") or {}).get("pair") or {}
    target, draft = ({**(models.get(role) or {})} for role in ("target", "draft"))
    name = str(target.get("name") or run.run.get("pair"))
    details = {"target_revision": target.get("revision"), "dtype": target.get("dtype")}
    details |= {"deployment_type": "self_deployed", "model_availability": "unknown"}
    details |= {"draft": draft.get("name"), "draft_revision": draft.get("revision")}
    return {
        "name": name,
        "id": name,
        "additional_details": {key: str(value) for key, value in details.items() if value},
    }


def _source_data(run: ExportedRun, task: str) -> dict[str, Any]:
    data = run.run.get("data") or {}
    source = str(data.get("source") or "")
    kept = ("revision", "split", "ids_sha256")
    details = {name: str(data[name]) for name in kept if data.get(name)}
    details |= {"synthetic": "true"} if run.summary["synthetic"] else {}
    hub = source.removeprefix("hub: ")
    if hub != source:
        place = {"source_type": "hf_dataset", "hf_repo": hub}
        place |= {"hf_split": str(data["split"])} if data.get("split") else {}
    else:
        place = {"source_type": "other"}
        details = details | {"source": source}
    return {"dataset_name": task, **place, "additional_details": details}


def _binary_score(arm: ArmSamples) -> str | None:
    """The score by which the arm's outputs are right or wrong; None without one."""
    names = {name for _, samples in arm.by_prompt for sample in samples for name in sample.scores}
    return next((name for name in BINARY if name in names), None)


def _instances(run: ExportedRun, arm: ArmSamples, evaluation_id: str, score: str) -> Iterator[dict[str, Any]]:
    """A line for each sample, right or wrong by ``score``."""
    model = _model(run)["id"]
    for prompt, samples in arm.by_prompt:
        for sample in samples:
            made = sample.generation
            value = sample.scores.get(score)
            if value is None:
                continue
            tokens = len(made.tokens)
            yield {
                "schema_version": f"instance_level_eval_{SCHEMA}",
                "evaluation_id": evaluation_id,
                "model_id": model,
                "evaluation_name": str(run.run.get("task")),
                "sample_id": prompt.example_id,
                "sample_hash": sha256(
                    (prompt.text + prompt.reference).encode(errors="surrogatepass")
                ).hexdigest(),
                "interaction_type": "single_turn",
                "input": {"raw": prompt.text, "reference": [prompt.reference, *prompt.other_references]},
                "output": {"raw": [made.text]},
                "messages": None,
                "answer_attribution": [],
                "evaluation": {"score": value, "is_correct": value == 1.0},
                "token_usage": {
                    "input_tokens": sample.prompt_tokens,
                    "output_tokens": tokens,
                    "total_tokens": sample.prompt_tokens + tokens,
                },
                "performance": {
                    "latency_ms": 1000 * (made.prefill_s + made.decode_s),
                    "generation_time_ms": 1000 * made.decode_s,
                },
                "metadata": {"sample_index": str(sample.sample_index)},
            }
