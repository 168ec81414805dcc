"""``audit --evidence`` and ``audit FILE``: the same verdict elsewhere, and what was changed is refused."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, call
from support.tiny_engine import Folders, InProcess, in_process, saved_pair

from spsbench.base.protocol import Answer, Ask, PeerGone
from spsbench.parts.audit import evidence_file

pytestmark = pytest.mark.thorough

PROMPTS = Path(__file__).resolve().parents[3] / "support/short_prompts.txt"
FEW = ("--task", PROMPTS, "--limit", "8", "--max-new-tokens", "12", "--texts", "20", "--k", "3")

MINI = ("--pair", "mini")

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return saved_pair(tmp_path_factory.mktemp("pair"))


def written(folder: Path, fault: str | None, monkeypatch: pytest.MonkeyPatch, *more: object) -> Path:
    """Evidence of one engine over the embedded pair."""
    path = folder / "evidence" / "file.jsonl"
    asked = ("--engine", in_process(fault, monkeypatch), *FEW, "--temperature", "1", "--bound", "60%", *more)
    call("audit", *asked, "--out", folder / "audit", "--evidence", path, "--quiet")
    return path


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return written(tmp_path_factory.mktemp("right"), None, patch)


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def changed(path: Path, folder: Path, change: Callable[[Lines], None], *, signed: bool = True) -> Path:
    """A copy in which something is otherwise, with a digest that fits or the old one."""
    lines = lines_of(path)
    change(lines)
    if signed:
        lines[0]["texts"] = evidence_file._digest(lines[1:])
    other = folder / "changed.jsonl"
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return other


def test_it_says_what_was_asked_and_holds_every_text(right: Path) -> None:
    head, *texts = lines_of(right)
    assert head["asked"]["pair"] == "mini"
    assert all(len(hashed) == 64 for part in head["weights"] for hashed in part.values())
    assert head["weights"][0] != head["weights"][1]
    for number, row in enumerate(head["rows"]):
        own = [text for text in texts if text["setting"] == number]
        assert len(row["path"]) == sum(text["request"] > 0 for text in own)
        assert sum(text["request"] == 0 for text in own) == 24 + 12, "short requests, and A, B, A of four"
    assert {row["decision"] for row in head["rows"]} == {"quiet", "undecided"}


def test_others_come_to_the_same_verdict_also_from_a_packed_file(
    cli: Cli, right: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "file.jsonl.gz"
    packed.write_bytes(gzip.compress(right.read_bytes()))
    done = cli("audit", packed, *MINI, "--json")
    assert done.code == 5, "plain sampling was undecided"
    facts = json.loads(done.out)
    assert [row["decision"] for row in facts["rows"]] == [
        row["decision"] for row in lines_of(right)[0]["rows"]
    ]
    assert facts["log10_e_apart"] < 0.01
    assert facts["missing"] == 0


def test_an_alarm_is_found_again(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "inverted-ratio", monkeypatch, "--arms", "sps")
    assert [row["decision"] for row in lines_of(path)[0]["rows"]] == ["alarm"]
    done = cli("audit", path, *MINI)
    assert done.code == 4
    assert "not the target's distribution: K=3, T=1" in done.err
    assert "Scored again: the same verdicts" in done.out


def _other_token(lines: Lines) -> None:
    lines[1]["completion_ids"][-1] ^= 1


def _other_verdict(lines: Lines) -> None:
    lines[0]["rows"][1]["decision"] = "alarm"


def _other_temperature(lines: Lines) -> None:
    lines[0]["rows"][0]["setting"]["sampling"]["temperature"] = 0.8


def _other_seed(lines: Lines) -> None:
    lines[1]["seed"] += 1


def _other_order(lines: Lines) -> None:
    lines[1]["request"], lines[2]["request"] = lines[2]["request"], lines[1]["request"]


def _no_setting(lines: Lines) -> None:
    lines[1]["setting"] = 7


def _no_effort(lines: Lines) -> None:
    del lines[0]["effort"]


def _other_version(lines: Lines) -> None:
    lines[0][evidence_file.KEY] = 99


def _twice(lines: Lines) -> None:
    """A request is taken out, and another's line stands in its place."""
    lines[2] = dict(lines[1])


def _not_finite(place: int, value: float = math.nan) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[0]["rows"][0]["path"][place] = value

    return change


def _of_header(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update({name: value})


def _of_text(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[1].update({name: value})


def _of_setting(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0]["rows"][0]["setting"].update({name: value})


def _of_sampling(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0]["rows"][0]["setting"]["sampling"].update({name: value})


@pytest.mark.parametrize(
    ("change", "signed", "code", "said"),
    [
        (_other_token, False, 2, "its texts are not those that it was written with"),
        (_other_seed, True, 2, "request 1 has another seed than the audit's"),
        (_other_order, True, 2, "has another seed than the audit's"),
        (_no_setting, True, 2, "line 2: setting is the number of a row"),
        (_twice, True, 2, "request 1 stands twice"),
        (_not_finite(0), True, 2, "rows.0.path.0 is not a finite number"),
        (_not_finite(-1, math.inf), True, 2, "is not a finite number"),
        (_of_header("prompts", []), True, 2, "prompts has to hold prompts of at least one token id"),
        (_of_header("prompts", [[]]), True, 2, "prompts has to hold prompts of at least one token id"),
        (_of_header("prompts", [[10**9]]), True, 2, "request 1 has another prompt than the audit's"),
        (_of_header("rows", []), True, 2, "rows is empty"),
        (_of_header("seed", "x"), True, 2, "is not whole: seed"),
        (_of_text("setting", "x"), True, 2, "line 2: setting is the number of a row"),
        (_of_text("request", True), True, 2, "line 2: request is a count"),
        (_of_text("prompt_ids", []), True, 2, "line 2: prompt_ids and completion_ids have to be token ids"),
        (_of_text("completion_ids", [10**9]), True, 2, "holds token id 1000000000, and the model has"),
        (_of_text("completion_ids", [1] * 5000), True, 2, "holds a text of "),
        (_of_text("completion_ids", "abc"), True, 2, "line 2: prompt_ids and completion_ids"),
        (
            _of_sampling("temperature", 0.0),
            True,
            2,
            "rows.0.setting.sampling: a temperature from 0.01 to 100",
        ),
        (
            _of_sampling("temperature", 1e9),
            True,
            2,
            "rows.0.setting.sampling: a temperature from 0.01 to 100",
        ),
        (_of_sampling("top_k", 10**10), True, 2, "top_k from 0 on"),
        (_of_sampling("top_k", 10**400), True, 2, "sampling.top_k is a number beyond 2^63"),
        (_of_sampling("top_p", 0.0), True, 2, "top_p above 0 and at most 1"),
        (_of_setting("k", 10**9), True, 2, "k lies from 0 to 1,000"),
        (_of_setting("in_flight", 0), True, 2, "in_flight from 1 on"),
        (_of_setting("weights", "../../x"), True, 2, "rows.0.setting.weights is the name of a format"),
        (_of_setting("weights", "x" * 5000), True, 2, "weights has more than 4,096 characters"),
        (_of_header(evidence_file.KEY, True), True, 2, "is evidence of version True, and 1 is known"),
        (_of_header("weights", []), True, 2, "weights has to hold the hashes of target and draft"),
        (_of_header("weights", [{}, {}]), True, 2, "has other weights than"),
        (_of_header("weights", "x"), True, 2, "is not whole: weights"),
        (_of_header("stop_ids", [10**9]), True, 2, "holds token id 1000000000, and the model has"),
        (_of_header("stop_ids", [-1]), True, 2, "stop_ids has to hold token ids"),
        (_of_header("effort", []), True, 2, "is not whole: effort"),
        (_of_header("asked", 3), True, 2, "is not whole: asked"),
        (_of_header("texts", 3), False, 2, "is not whole: texts"),
        (_of_header("rows", {"a": 1}), True, 2, "is not whole: rows"),
        (_of_text("request", -1), True, 2, "line 2: request is a count"),
        (
            _of_text("completion_ids", []),
            True,
            2,
            "line 2: prompt_ids and completion_ids have to be token ids",
        ),
        (_of_text("completion_ids", None), True, 2, "line 2: prompt_ids and completion_ids"),
        (_of_text("free", "x"), True, 2, "line 2: free and max_new_tokens are counts"),
        (_of_text("free", []), True, 2, "line 2: free and max_new_tokens are counts"),
        (_of_text("max_new_tokens", 1.5), True, 2, "line 2: free and max_new_tokens are counts"),
        (_of_text("retokenised", 1), True, 2, "line 2: retokenised is true or false"),
        (_of_text("seed", math.nan), True, 2, "seed is not a finite number"),
        (_of_text("seed", "0"), True, 2, "request 1 has another seed than the audit's"),
        (_no_effort, True, 2, "is not whole: effort: Field required"),
        (_other_version, True, 2, "is evidence of version 99, and 1 is known"),
        (_other_token, True, 4, "other e-values"),
        (_other_verdict, True, 4, "quiet, where the file says alarm"),
        (_other_temperature, True, 4, "other e-values"),
    ],
)
def test_what_was_changed_is_refused(
    cli: Cli, right: Path, tmp_path: Path, change: Callable[[Lines], None], signed: bool, code: int, said: str
) -> None:
    done = cli("audit", changed(right, tmp_path, change, signed=signed), *MINI)
    assert done.code == code, done.err
    assert said in " ".join(done.err.split())
    assert "fault of spsbench" not in done.err


def test_texts_that_were_taken_out_are_counted(cli: Cli, right: Path, tmp_path: Path) -> None:
    def without_one(lines: Lines) -> None:
        """As a forger would: the path fits."""
        del lines[3]
        del lines[0]["rows"][0]["path"][2:]

    done = cli("audit", changed(right, tmp_path, without_one), *MINI)
    assert done.code == 4, "the e-values behind it are others"
    _, *texts = lines_of(tmp_path / "changed.jsonl")
    assert evidence_file.missing(texts) == 1


def test_other_weights_are_refused(cli: Cli, right: Path, tiny: Folders) -> None:
    target, draft = tiny
    done = cli("audit", right, "--target", target, "--draft", draft)
    assert done.code == 2
    assert "has other weights than" in done.err


@pytest.mark.parametrize("given", [("--temperature", "0.7"), ("--process", "repetition_penalty=1.3")])
def test_its_sampling_is_not_asked_for(cli: Cli, right: Path, given: tuple[str, str]) -> None:
    done = cli("audit", right, *given)
    assert done.code == 2
    assert "says how its texts were drawn" in done.err


def test_short_requests_are_kept_and_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, None, monkeypatch, "--arms", "sps")
    first = lines_of(path)

    def gone(engine: InProcess, ask: Ask) -> Answer:
        raise PeerGone("it was asked again")

    monkeypatch.setattr(InProcess, "generate", gone)
    again = lines_of(written(tmp_path, None, monkeypatch, "--arms", "sps"))
    assert again[1:] == first[1:]
    assert again[0]["rows"] == first[0]["rows"]


def test_the_models_are_typed_and_not_taken_from_the_file(cli: Cli, right: Path) -> None:
    done = cli("audit", right)
    assert done.code == 2
    assert "--pair: which models to score by is not taken from" in done.err
    assert "which says mini. Type it" in done.err
