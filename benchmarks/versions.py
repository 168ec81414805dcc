"""Engines by release and setting, each cell audited, and the defects that show.

    python -m benchmarks.versions [--engine openvino@2025.2.0.0] [--group sampled] [--texts 40] [--again]

Audits what is installed (`spsbench get NAME@RELEASE`) and is not in OUT.json yet. What was audited or has
failed is asked again with --again only, so that an interrupted run goes on. OUT/ holds the evidence of every
audit, which `spsbench audit FILE` scores again without the engine; OUT.md is the table. Texts are those of
the embedded pair (synthetic).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spsbench.base.environment import describe_environment
from spsbench.parts.external.install import load_entry
from spsbench.report.tables import Table, left

OUT = Path("results/reference/engines/versions")
_LONGEST_S = 1200.0  # of one audit, all of its settings
_TOKENS = 48
_SHARED = ("--task", "humaneval", "--limit", "20", "--max-new-tokens", str(_TOKENS), "--budget", "120")

Rows = dict[str, dict[str, Any]]
"""By release and group (``openvino@2026.4.1.0 sampled``): ``cells`` of its settings, and ``error``."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of an engine, as ``--engine`` has it; ``options`` are those that it is audited with."""

    engine: str
    version: str
    options: str = ""

    @property
    def name(self) -> str:
        return f"{self.engine}@{self.version}{self.options}"


RELEASES = (
    *(Release("onnxruntime-genai", version) for version in ("0.18.0", "0.17.1", "0.16.0", "0.15.2")),
    *(
        Release("openvino", version)
        for version in ("2026.4.1.0", "2026.3.1.0", "2026.1.0.0", "2025.4.1.0", "2025.2.0.0")
    ),
    *(
        Release("transformers", version)
        for version in ("5.24.0", "5.15.1", "5.15.0", "4.45.0", "4.44.2", "4.43.2")
    ),
    *(Release("llama-cpp", "11434.0.0", f":draft_sampling={rule}") for rule in ("greedy", "probabilistic")),
    *(  # which know one rule alone
        Release("llama-cpp", version, ":draft_sampling=greedy")
        for version in ("11205.0.0", "10930.0.0", "10502.0.0")
    ),
    *(
        Release("vllm", version, ":draft_sample_method=probabilistic")
        for version in ("0.32.0", "0.31.0", "0.30.0", "0.29.0")
    ),
    *(Release("mlx-lm", version) for version in ("0.32.2", "0.31.3", "0.30.7", "0.29.1")),
)
"""Newest first within each engine."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "sampled": ("--temperature", "1.5", "--in-flight", "1,4"),
    "nucleus": ("--temperature", "1", "--top-p", "0.9"),
    "greedy": ("--temperature", "0"),
    "lookup": ("--temperature", "1.5", "--arms", "sps"),
}
"""What one audit asks for; lookup is asked of engines that have it."""

COLUMNS = {
    "plain": ("sampled", True, 1),
    "plain, 4 in flight": ("sampled", True, 4),
    "K=4": ("sampled", False, 1),
    "K=4, 4 in flight": ("sampled", False, 4),
    "plain, top-p 0.9": ("nucleus", True, 1),
    "K=4, top-p 0.9": ("nucleus", False, 1),
    "K=4, greedy": ("greedy", False, 1),
    "prompt lookup": ("lookup", False, 1),
}
"""Group, whether it is plain, and requests in flight of each column."""

_LOOKUP = ("openvino", "llama-cpp")


@dataclass(frozen=True, slots=True)
class Defect:
    """Something that is wrong in a release.

    Attributes:
        column: of the table, where it shows; None where it shows in none.
        script: reproduces it without spsbench.
        has: which releases have it, by what is not in the table.
    """

    what: str
    engine: str
    column: str | None
    thread: str
    script: str | None = None
    has: str = ""


_GENAI = "https://github.com/openvinotoolkit/openvino.genai"
_HF = "https://github.com/huggingface/transformers"

DEFECTS = (
    Defect(
        "A rejection is handled one row late; there is no residual",
        "openvino",
        "K=4",
        f"{_GENAI}/issues/4190 (open)",
        "openvino-repro.py",
    ),
    Defect(
        "What prompt lookup copies is accepted always",
        "openvino",
        "prompt lookup",
        f"{_GENAI}/pull/2331 (merged)",
        None,
        "by hand: 2025.1.0.0 and 2025.2.0.0 have it, 2025.3.0.0 and 2026.4.1.0 have not",
    ),
    Defect(
        "Presence and frequency penalties are added to negative logits",
        "openvino",
        None,
        "none found",
        "openvino-penalties.py",
        "2026.4.1.0 has it; no other release was tried",
    ),
    Defect(
        "The assistant drafts its most probable token, and the test takes it for a draw from the softmax",
        "transformers",
        "K=4",
        f"{_HF}/issues/32867 (closed)",
        None,
        "a search at temperature 1: ALARM in 4.41.0, 4.41.1, 4.42.0, 4.42.4 and 4.44.2 after 8 texts, "
        "none in 4.40.2 (40) and 4.45.0 (110)",
    ),
    Defect(
        "A DFlash head's tokens are drawn after top-k, and the test is given the logits before",
        "transformers",
        None,
        f"{_HF}/issues/47932 (closed)",
        None,
        "a search: ALARM in 5.15.0 after 39 texts, none in 5.15.1 (60); 5.14.1 has no such head",
    ),
    Defect(
        "Generation with a draft model ends in an error: the draft is asked to read no token",
        "transformers",
        None,
        "none found",
        "transformers-draft-error.py",
        "5.15.0 and 5.15.1 have it, 5.24.0 and 4.45.0 have not",
    ),
    Defect(
        "Drafted tokens are verified with uninitialised temperature, top-k and top-p (CPU build)",
        "vllm",
        "K=4",
        "https://github.com/vllm-project/vllm/issues/55005 (open)",
        None,
        "the museum and the gate: ALARM in 0.32.0 after 2 or 3 texts",
    ),
    Defect(
        "With a top-k of 0, top-p is ignored; the worker asks for a top-k of the whole vocabulary",
        "onnxruntime-genai",
        None,
        "none found",
        None,
        "0.18.0 has it; no other release was tried",
    ),
)

_HEAD = """\
# Engines by release

Each cell is one setting of one release, audited with texts of the embedded pair (synthetic) in float32:
temperature 1.5 unless top-p or greedy is named, at most {texts} texts of {tokens} tokens, K = 4.

* ALARM (after so many texts): they do not follow the target.
* "No alarm" has the leakage that these texts rule out (95%). With so few the bound is wide, and nothing is
  said about smaller leaks.
* "wrong:" names findings [beside the law](../../../docs/audit.md#evidence-beside-the-law).
* A dash: not audited.

Made by `python -m benchmarks.versions`. The evidence of each audit is left in `versions/`, which
git does not keep; `spsbench audit FILE --pair mini` scores it again without the engine.
"""

Ask = Callable[[Release, str, Path, int], dict[str, Any]]
"""Audits one release with one group and writes its evidence to a path; ``cells``, or ``error``."""


def ask(release: Release, group: str, evidence: Path, texts: int) -> dict[str, Any]:
    """Run the audit in a process of its own: whatever becomes of it, the table goes on."""
    name = release.name + (":speculation=lookup" if group == "lookup" else "")
    command = [sys.executable, "-m", "spsbench", "audit", "--engine", name, *_SHARED, *GROUPS[group]]
    command += ["--texts", str(texts), "--evidence", str(evidence), "--json", "--quiet"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_LONGEST_S:.0f} s"}
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
    try:
        rows = json.loads(done.stdout)["rows"]
    except (ValueError, KeyError):
        return {"error": why}
    cells = {"cells": [cell_of(row) for row in rows]}
    return cells | ({"error": why} if "the engine gave up" in why else {})  # with rows of what came before


def cell_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the table keeps of one setting."""
    names = ("setting", "is_plain", "in_flight", "decision", "decided_after", "texts", "bound")
    kept = {name: row[name] for name in (*names, "log10_e_value", "against", "cannot", "seconds")}
    kept |= {"failures": len(row["failures"]), "version": row["engine"]["version"]}
    return kept | {"wrong": [each["test"] for each in row["free"] if not each["passed"]]}


def is_here(release: Release) -> bool:
    """Whether a release is installed."""
    return load_entry(f"{release.engine}@{release.version}", "--engine").environment.is_here


def fill(
    rows: Rows, releases: Sequence[Release], groups: Sequence[str], out: Path, texts: int, asked: Ask = ask
) -> Iterator[str]:
    """Audit what ``rows`` lack, writing after each; yields a line for each."""
    out.mkdir(parents=True, exist_ok=True)
    for group in groups:
        for release in releases:
            key = f"{release.name} {group}"
            if key in rows or (group == "lookup" and release.engine not in _LOOKUP):
                continue
            evidence = out / f"{release.name.replace(':', '-').replace('=', '-')}-{group}.jsonl.gz"
            found = asked(release, group, evidence, texts)
            rows[key] = found | {"date": f"{datetime.now(UTC):%Y-%m-%d}", "texts": texts}
            write(out, rows)
            yield f"{key}: {found.get('error') or [each['decision'] for each in found['cells']]}"


def read(out: Path) -> Rows:
    """What an earlier run has written."""
    file = out.with_suffix(".json")
    found: Rows = json.loads(file.read_text())["rows"] if file.is_file() else {}
    return found


def write(out: Path, rows: Rows) -> None:
    """``OUT.json`` and ``OUT.md``."""
    environment = describe_environment(["python", "-m", "benchmarks.versions"])
    facts = {"environment": environment, "rows": rows}
    out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text("\n".join(page(rows)) + "\n", encoding="utf-8")


def page(rows: Rows) -> list[str]:
    """The table of cells, what failed, and the table of defects."""
    texts = max((row["texts"] for row in rows.values()), default=0)
    table = Table(
        [left("release"), *(left(name) for name in COLUMNS)],
        [[_shown(each), *(_cell(rows, each, name) for name in COLUMNS)] for each in RELEASES],
    )
    failed = [f"* {key}: {row['error']}" for key, row in rows.items() if "error" in row]
    defects = Table(
        [left("defect"), left("engine"), left("thread"), left("script without spsbench"), left("releases")],
        [_defect(rows, each) for each in DEFECTS],
    )
    told = ["", "## What failed", "", *failed] if failed else []
    return [
        *_HEAD.format(texts=texts, tokens=_TOKENS).splitlines(),
        "",
        *table.as_markdown(),
        *told,
        "",
        "## Defects",
        "",
        "First and last are of the releases audited here; what lies between or before was not tried. So few",
        "texts miss a defect that changes the law a little. Scripts lie beside this page.",
        "",
        *defects.as_markdown(),
    ]


def _shown(release: Release) -> str:
    return release.name.replace(":", ", ").replace("_", " ")


def _at(rows: Rows, release: Release, column: str) -> dict[str, Any] | None:
    """The setting of a column; a row with ``error`` where its audit failed, None where it was not audited."""
    group, is_plain, in_flight = COLUMNS[column]
    row = rows.get(f"{release.name} {group}", {})
    cells = row.get("cells", ())
    fits = (each for each in cells if (each["is_plain"], each["in_flight"]) == (is_plain, in_flight))
    return next(fits, row if "error" in row else None)


def _cell(rows: Rows, release: Release, column: str) -> str:
    found = _at(rows, release, column)
    if found is None:
        return "-"
    if "error" in found:
        return "failed"
    if found["cannot"]:
        return "cannot"
    if found["decision"] == "alarm":
        return f"ALARM ({found['decided_after']})"
    if not found["texts"]:
        return "no text"
    bound = "" if found["bound"] is None else f", at most {found['bound']:.1%}"
    wrong = f"; wrong: {', '.join(found['wrong'])}" if found["wrong"] else ""
    failed = f"; {found['failures']} requests failed" if found["failures"] else ""
    return f"no alarm in {found['texts']}{bound}{wrong}{failed}"


def _defect(rows: Rows, defect: Defect) -> list[str]:
    return [defect.what, defect.engine, defect.thread, defect.script or "-", _releases(rows, defect)]


def _releases(rows: Rows, defect: Defect) -> str:
    """Which of the audited releases have a defect."""
    if defect.column is None:
        return defect.has
    own = [each for each in reversed(RELEASES) if each.engine == defect.engine]
    told = {each.version: _at(rows, each, defect.column) for each in own}
    known = {name: each for name, each in told.items() if each and "error" not in each and each["texts"]}
    has = [name for name, each in known.items() if each["decision"] == "alarm"]
    free = [name for name, each in known.items() if each["decision"] != "alarm"]
    parts = [f"{has[0]} to {has[-1]}" if len(has) > 1 else has[0]] if has else []
    parts += [f"no alarm here: {', '.join(free)}"] if free else []
    return "; ".join([*(parts or ["not audited here"]), *([defect.has] if defect.has else [])])


def main() -> int:
    """Audit what is missing, and write the table."""
    given = _arguments()
    rows = read(given.out)
    asked = [each for each in RELEASES if not given.engine or each.name.startswith(tuple(given.engine))]
    here = [each for each in asked if is_here(each)]
    for each in asked:
        if each not in here:
            print(f"{each.name}: not installed, not audited", file=sys.stderr)
    groups = given.group or list(GROUPS)
    if given.again:
        rows = {key: row for key, row in rows.items() if not _chosen(key, here, groups)}
    for line in fill(rows, here, groups, given.out, given.texts):
        print(line, flush=True)
    write(given.out, rows)
    return 0


def _chosen(key: str, releases: Sequence[Release], groups: Sequence[str]) -> bool:
    name, _, group = key.rpartition(" ")
    return group in groups and name in {each.name for each in releases}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", action="append", help="its name, or the beginning of NAME@RELEASE")
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--texts", type=int, default=40, help="most of a setting")
    parser.add_argument("--again", action="store_true", help="also what was audited, or failed, before")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
