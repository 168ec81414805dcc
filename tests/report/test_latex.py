"""Tables as LaTeX: whole environments, one cell a column, and foreign text that is only text."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.synthetic_run import measured

from spsbench.report.exports import escape, to_latex
from spsbench.report.measured import Measured

HOSTILE = r"100%_done & $x^2$ #1 {a} \input{/etc/passwd} ~ <b>" + "\n% gone"


def hostile() -> Measured:
    rows = [{**row, "sampling": f"{row['sampling']}_%&"} for row in measured().summary["rows"]]
    return dataclasses.replace(
        measured(), name=HOSTILE, summary={**measured().summary, "task_label": HOSTILE, "rows": rows}
    )


def problems(text: str) -> list[str]:
    """What LaTeX would refuse: environments and braces left open, bare specials, rows of unlike length."""
    found: list[str] = []
    code = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(code)
    opened = re.findall(r"\\begin\{(\w+)\}", body)
    if sorted(opened) != sorted(re.findall(r"\\end\{(\w+)\}", body)):
        found.append("environments")
    bare = re.sub(r"\\[&%$#_{}\\]", "", body)
    if bare.count("{") != bare.count("}"):
        found.append("braces")
    if re.search(r"[%#~<>|]", bare):
        found.append("specials")
    if any("^" in line or "_" in line for line in re.sub(r"\$[^$]*\$", "", bare).splitlines()):
        found.append("specials")
    if re.search(r"\\input", body):
        found.append("a command from outside")
    for table in re.findall(
        r"\\begin\{tabular\}\{@\{\}([lrc]+)@\{\}\}(.*?)\\end\{tabular\}", body, re.DOTALL
    ):
        columns, rows = len(table[0]), re.sub(r"\\&", "", table[1]).splitlines()
        if any(row.endswith(r"\\") and row.count("&") != columns - 1 for row in rows):
            found.append("columns")
    return found


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (("\\end{table}", ""), "environments"),
        (("\\bottomrule", "\\bottomrule}"), "braces"),
        (("\\%", "%"), "specials"),
        ((" & ROUGE-2", ""), "columns"),
        (("\\midrule", "\\midrule\\input{x}"), "a command from outside"),
    ],
)
def test_a_planted_fault_is_found(fault: tuple[str, str], name: str) -> None:
    text = to_latex([measured()])
    assert problems(text) == []
    assert name in problems(text.replace(*fault))


def test_foreign_text_is_only_text() -> None:
    text = to_latex([hostile()])
    assert problems(text) == []
    assert r"100\%\_done \& \$x\textasciicircum{}2\$ \#1 \{a\} \textbackslash{}input\{/etc" in text
    assert escape("a\nb\x1b") == "a b"


def test_a_table_has_a_row_an_arm_and_intervals_in_small_type() -> None:
    text = to_latex([measured()])
    assert text.count(r"\begin{tabular}") == 2
    rows = measured().summary["rows"]
    found = rows[3]["speedup"]
    cell = rf"{found['ratio']:.2f}$\times$ {{\scriptsize [{found['low']:.2f}, {found['high']:.2f}]}}"
    (line,) = [line for line in text.splitlines() if line.startswith("SpS ($K=4$), nucleus") and cell in line]
    assert f"{rows[3]['metrics']['rouge2']:.3f}" in line
    results = text[: text.index(r"\end{table}")]
    assert sum(line.startswith(("ArS", "SpS")) for line in results.splitlines()) == len(rows)
    assert results.count(r"\midrule") == 2  # one of them between the samplings
    assert "% SYNTHETIC data" in text
    assert "% Run fixture: xsum-fixture (synthetic)" in text


def test_one_sampling_stands_in_the_caption_alone() -> None:
    text = to_latex([measured(ks=(0, 4), samplings=("nucleus",))])
    assert "SpS ($K=4$) & " in text
    assert r"\caption{xsum-fixture (synthetic), 12 prompts. Pair simulated, nucleus (T=1, top-p 0.8)." in text


def test_a_run_without_loops_has_no_table_of_acceptance_and_dashes_for_what_is_missing() -> None:
    text = to_latex([measured(prompts=0)])
    assert text.count(r"\begin{tabular}") == 1
    assert problems(text) == []
    assert " & --" in text


def test_an_alarm_goes_where_the_numbers_go(make_judged_arm: Any) -> None:
    judged = {"verdict": "alarm", "arms": [make_judged_arm(verdict="alarm")]}
    alarmed = dataclasses.replace(measured(), summary={**measured().summary, "losslessness": judged})
    assert to_latex([alarmed]).count("ALARM") >= 2  # among the comments and in a caption
    assert "ALARM" not in to_latex([measured()])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_makes_a_document_of_it(tmp_path: Path) -> None:
    tables = to_latex([measured(), hostile()])
    page = (
        f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{tables}\\end{{document}}\n"
    )
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "page.pdf").is_file()
