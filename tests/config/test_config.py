from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spsbench.base.errors import UsageError
from spsbench.config import (
    MAX_K,
    ModelRef,
    PairConfig,
    RunConfig,
    list_pairs,
    list_protocols,
    load_pair,
    load_protocol,
    parse_ks,
    resolve,
)


def test_nothing_given_is_the_embedded_pair_on_its_own_data() -> None:
    config = resolve({})
    assert (config.task, config.pair.name, config.data, config.protocol) == ("xsum", "mini", "mini", "quick")
    assert (config.ks, config.methods, config.engines, config.limit) == ((4,), ("ars", "sps"), ("eager",), 40)


def test_another_pair_runs_on_official_data() -> None:
    assert resolve({"pair": "gpt2"}).data == "official"
    assert resolve({"data": "mini", "pair": "gpt2"}).data == "mini"


def test_the_shipped_files_are_all_valid() -> None:
    assert {load_pair(name).name for name in list_pairs()} == set(list_pairs())
    assert {load_protocol(name).name for name in list_protocols()} == set(list_protocols())
    assert {"mini", "gpt2", "pythia", "llama", "qwen2.5-coder", "qwen3"} <= set(list_pairs())
    assert [name for name in list_pairs() if load_pair(name).synthetic] == ["mini", "mini-t5"]


def test_the_paper_protocol_is_that_of_table_1() -> None:
    xsum, humaneval = (resolve({"task": task, "protocol": "paper"}) for task in ("xsum", "humaneval"))
    assert (xsum.limit, xsum.samples, xsum.samplings, xsum.ks) == (None, 1, ("nucleus", "greedy"), (4,))
    assert (humaneval.limit, humaneval.samples, humaneval.samplings) == (None, 100, ("nucleus",))


def test_a_task_file_is_known_by_its_stem() -> None:
    assert resolve({"task": "elsewhere/humaneval.yaml", "protocol": "paper"}).samples == 100


def test_each_source_overrules_the_one_below(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("limit: 10\nseed: 1\ntrace: 2\n")
    config = resolve({"seed": 3, "trace": 4}, file, ["trace=5"])
    assert (config.samples, config.limit, config.seed, config.trace) == (1, 10, 3, 5)


def test_a_typed_protocol_overrules_the_limits_of_a_file(tmp_path: Path) -> None:
    """An earlier run's config.yaml has all of them; what was typed beside the protocol is above it."""
    path = tmp_path / "config.yaml"
    path.write_text(resolve({"task": "humaneval", "protocol": "paper", "max_new_tokens": 64}).to_yaml())
    before, quick = resolve({}, path), load_protocol("quick").settings("humaneval")
    assert (before.limit, before.samples, before.samplings) == (None, 100, ("nucleus",))
    for typed, overrides in (({"protocol": "quick"}, ()), ({}, ("protocol=quick",))):
        now = resolve(typed, path, overrides)
        assert (now.protocol, now.limit, now.samples) == ("quick", quick["limit"], quick["samples"])
        assert now.samplings is None, "the earlier protocol's"
        assert now.max_new_tokens == 64, "the file's own"
    both = resolve({"protocol": "quick", "limit": 3, "k": "2"}, path, ("samples=5",))
    assert (both.limit, both.ks, both.samples) == (3, (2,), 5)
    path.write_text("protocol: paper\nlimit: 7\n")
    assert resolve({"protocol": "quick"}, path).limit == quick["limit"]
    assert resolve({}, path).limit == 7


def test_null_in_a_file_overrules_the_protocol(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("limit: null\n")
    assert resolve({}, file).limit is None
    assert resolve({"limit": None}, None).limit == 40


def test_flags_go_by_their_names_on_the_command_line() -> None:
    config = resolve({"k": "0..2", "arms": "ars,sps,draft", "sampling": "nucleus, greedy", "engine": "eager"})
    assert config.ks == (0, 1, 2)
    assert config.methods == ("ars", "sps", "draft")
    assert config.samplings == ("nucleus", "greedy")


def test_two_models_make_a_pair() -> None:
    pair = resolve({"target": "a/b", "draft": "c@v1"}).pair
    assert pair == PairConfig(
        name="a/b with c@v1",
        target=ModelRef(id="a/b"),
        draft=ModelRef(id="c", revision="v1"),
        synthetic=False,
    )


@pytest.mark.parametrize(
    ("typed", "id", "revision"),
    [
        ("org/name@main", "org/name", "main"),
        ("gpt2@refs/pr/3", "gpt2", "refs/pr/3"),
        ("a.b-c/d_e.f@v1@x", "a.b-c/d_e.f", "v1@x"),
        ("org/name", "org/name", None),
        ("org/name@", "org/name@", None),
        ("./folder@v1", "./folder@v1", None),
        ("~/folder@v1", "~/folder@v1", None),
        ("/models/folder@v1", "/models/folder@v1", None),
        ("one/two/three@v1", "one/two/three@v1", None),
        ("package:smollm2@1", "package:smollm2@1", None),
    ],
)
def test_a_hub_id_has_its_revision_behind_an_at(typed: str, id: str, revision: str | None) -> None:
    for ref in (
        ModelRef(id=typed),
        ModelRef.model_validate(typed),
        resolve({"target": typed, "draft": "x"}).pair.target,
    ):
        assert (ref.id, ref.revision) == (id, revision)


@pytest.mark.parametrize("name", ["mine@home", "models/mine@home"])
def test_a_folder_with_an_at_in_its_name_is_taken_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelRef(id=name).revision == "home"
    (tmp_path / name).mkdir(parents=True)
    assert ModelRef(id=name) == ModelRef(id=name, revision=None)
    assert ModelRef(id=name).id == name


def test_a_config_that_is_kept_says_revisions_and_is_read_as_it_is() -> None:
    """Also where the folder of that name is gone."""
    assert ModelRef.model_validate({"id": "mine@home", "revision": None}).id == "mine@home"


def test_set_reaches_into_the_pair() -> None:
    config = resolve({"pair": "gpt2"}, None, ["pair.target.revision=main", "k=2"])
    assert (config.pair.target.revision, config.pair.name, config.ks) == ("main", "gpt2", (2,))


def test_a_pair_can_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("target: {id: a@v1}\ndraft: b@v2\n")
    pair = resolve({"pair": str(file)}).pair
    assert (pair.name, pair.target, pair.draft) == (
        "own",
        ModelRef(id="a", revision="v1"),
        ModelRef(id="b", revision="v2"),
    )


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"task": "humaneval", "protocol": "paper", "k": "0,7", "temperature": 0.5, "shard": "2/3"},
        {"target": "a", "draft": "b", "threads": 2, "limit": 7, "score": False},
    ],
)
def test_a_written_configuration_runs_again(flags: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(flags)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert resolve({}, file) == config


@pytest.mark.parametrize(
    ("text", "ks"),
    [("4", (4,)), ("0..7", tuple(range(8))), ("0,2,4", (0, 2, 4)), (" 3 , 0..1,3", (3, 0, 1)), ("64", (64,))],
)
def test_ks_as_people_write_them(text: str, ks: tuple[int, ...]) -> None:
    assert parse_ks(text) == ks


@pytest.mark.parametrize(
    "text", ["", "-1", "65", "4.0", "7..0", "0..65", "1,,2", "four", "0..", "٤", "1e1", "nan"]
)
def test_nonsense_is_no_lookahead(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ks(text)
    assert caught.value.flag == "--k"
    assert caught.value.remedy


@given(st.text(max_size=12))
def test_any_text_is_ks_in_range_or_a_usage_error(text: str) -> None:
    try:
        ks = parse_ks(text)
    except UsageError:
        return
    assert ks
    assert all(0 <= k <= MAX_K for k in ks)
    assert len(set(ks)) == len(ks)


@pytest.mark.parametrize(
    ("override", "flag", "guess"),
    [
        ("limt=3", "--set limt", "limit"),
        ("pair.target.revison=x", "--set pair.target.revison", "revision"),
        ("pair.traget.id=x", "--set pair.traget", "target"),
        ("pair=gtp2", "--pair", "gpt2"),
    ],
)
def test_an_unknown_name_gets_the_closest(override: str, flag: str, guess: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, None, [override])
    assert caught.value.flag == flag
    assert f"Did you mean {guess}?" in str(caught.value.remedy)


def test_a_setting_inside_another_has_no_option_name() -> None:
    """``id`` is an option's name for ``ids``, and a field of a model."""
    pair = resolve({}, None, ["pair.target.id=org/other", "id=short-1"])
    assert (pair.pair.target.id, pair.ids) == ("org/other", ("short-1",))


@pytest.mark.parametrize(
    "override", ["limit", "=3", "a..b=1", "limit=[", "limit.a=3", "limit.a.b=3", "pair=3", "task="]
)
def test_a_bad_assignment_is_a_usage_error(override: str) -> None:
    with pytest.raises(UsageError):
        resolve({}, None, [override])


def test_pair_and_models_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="together with --pair"):
        resolve({"target": "a", "draft": "b", "pair": "gpt2"})


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"a: [", b"- 1", b"", b"a: 2001-99-99", b"[" * 1200, b"1: 2", b"limits: 3", b"pair: {}"],
)
def test_a_bad_configuration_file_is_a_usage_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError):
        resolve({"trace": 1}, file) if content else resolve({}, file)


def test_a_missing_configuration_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, tmp_path / "none.yaml")
    assert caught.value.flag == "--config"


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("limit: some\n")
    with pytest.raises(UsageError) as caught:
        resolve({}, file)
    assert caught.value.flag == f"{file}: limit"


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)


@given(st.dictionaries(st.sampled_from(sorted(RunConfig.model_fields)), _values, max_size=3))
def test_any_values_in_a_file_give_a_configuration_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "config.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    try:
        config = resolve({}, file)
    except UsageError:
        return
    assert isinstance(config, RunConfig)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        resolve({}).seed = 1  # type: ignore[misc]


def test_shards_count_from_one() -> None:
    assert resolve({"shard": "1/4"}).shard_index == (0, 4)
    assert resolve({}).shard_index == (0, 1)


def test_a_target_alone_will_do_where_nothing_runs_a_draft_model() -> None:
    for flags in ({"drafter": "heads:from=x,lookup"}, {"arms": "ars"}):
        pair = resolve({"target": "org/model"} | flags).pair
        assert (pair.target.id, pair.draft.id) == ("org/model", "org/model")
    for flags in ({}, {"drafter": "lookup,model"}, {"drafter": "lookup", "arms": "ars,sps,draft"}):
        with pytest.raises(UsageError, match="--draft is missing beside --target org/model"):
            resolve({"target": "org/model"} | flags)


def test_a_pair_may_name_its_drafter_and_a_run_another(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text("name: p\ntarget: {id: a/b}\ndraft: {id: a/c}\ndrafter: lookup\n")
    assert resolve({"pair": str(path)}).drafters == ("lookup",)
    assert resolve({"drafter": "model", "pair": str(path)}).drafters == ("model",)
    assert resolve({}).drafters == ("model",)


def test_a_pair_may_name_its_task_and_a_run_another(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text("name: p\ntarget: {id: a/b}\ndraft: {id: a/c}\ntask: humaneval\n")
    assert resolve({"pair": str(path)}).task == "humaneval"
    assert resolve({"task": "xsum", "pair": str(path)}).task == "xsum"
    assert resolve({"pair": "mini-t5"}).task == "wmt-mini"
    assert resolve({}).task == "xsum"


@pytest.mark.parametrize(
    ("typed", "engines"),
    [
        ("eager,worker:python e.py", ("eager", "worker:python e.py")),
        ('worker:"python e.py --sizes 1,2",eager', ("worker:python e.py --sizes 1,2", "eager")),
        ("worker:python e.py 'a,b' c", ("worker:python e.py 'a,b' c",)),
        ("""worker:"python" 'e.py'""", ("""worker:"python" 'e.py'""",)),
        (["worker:'python e.py a,b'"], ("worker:python e.py a,b",)),
    ],
)
def test_a_command_keeps_the_commas_within_its_quotes(typed: object, engines: tuple[str, ...]) -> None:
    config = resolve({"engine": typed})
    assert config.engines == engines
    assert RunConfig.model_validate(yaml.safe_load(config.to_yaml())).engines == engines


@pytest.mark.parametrize(
    ("typed", "score"),
    [
        ({"unsafe_exec": True}, "unsafe"),
        ({"unsafe_exec": True, "score": True}, "unsafe"),
        ({"unsafe_exec": True, "score": False}, False),
        ({"unsafe_exec": False, "score": True}, True),
    ],
)
def test_unsafe_programs_are_a_way_to_score(typed: dict[str, Any], score: object) -> None:
    assert resolve(typed).score == score


@pytest.mark.parametrize("name", ["quantise", "budget_s", "kernels", "beams", "min_p"])
def test_a_setting_that_there_is_not_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{name}: 1")
    with pytest.raises(UsageError, match=f"config.yaml: {name}: the setting {name} is unknown"):
        resolve({}, file)
