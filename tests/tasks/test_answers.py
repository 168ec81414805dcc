"""Code is found in answers as instruct models write them, and passes where it is right."""

from __future__ import annotations

import pytest

from spsbench.records import Prompt
from spsbench.tasks.answers import code_of
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.tokenizer import TextTokenizer

TASK = load_task("humaneval")
PROMPT = 'from math import pi\n\n\ndef area(r):\n    """Area of a disc."""\n'
REFERENCE = "def check(candidate):\n    assert abs(candidate(2) - 12.566) < 0.01\n\n\ncheck(area)\n"
WHOLE = "def area(r):\n    return pi * r * r\n"

RIGHT = {
    "fenced": f"Here is the function:\n\n```python\n{WHOLE}```\n\nIt multiplies.",
    "without a language": f"```\n{WHOLE}```",
    "left open by the length limit": f"Sure!\n```python\n{WHOLE}",
    "with a helper": f"```\ndef square(x):\n    return x * x\n\n\n{WHOLE.replace('r * r', 'square(r)')}```",
    "with an own import": f"```python\nimport math\n\n{WHOLE.replace('pi', 'math.pi')}```",
    "second block": f"First:\n```bash\npip install nothing\n```\nThen:\n```python\n{WHOLE}```",
    "inside a list": f"1. This:\n   ```python\n   {WHOLE.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```",
    "no fence": WHOLE,
    "body": "```python\n    return pi * r * r\n```",
    "body at the margin": "```python\nsquare = r * r\nreturn pi * square\n```",
    "bare body": "    return pi * r * r",
}
WRONG = {
    "prose": "I cannot help with that.",
    "another function": "```python\ndef volume(r):\n    return 0\n```",
    "empty": "",
    "a wrong one": "```python\ndef area(r):\n    return 0\n```",
}


def chat(reference: str = REFERENCE, text: str = PROMPT) -> Prompt:
    return Prompt("t/0", text, (1,), reference, chat=True)


@pytest.mark.parametrize("kind", list(RIGHT))
def test_right_answers_run(kind: str) -> None:
    head, code = code_of(RIGHT[kind], PROMPT, "area")
    names: dict[str, object] = {}
    exec(head + code, names)
    assert abs(names["area"](2) - 12.566) < 0.01  # type: ignore[operator]


def test_verdicts() -> None:
    texts = [RIGHT["fenced"], RIGHT["body at the margin"], *WRONG.values()]
    scores = [score["passed"] for score in TASK.score([chat()] * len(texts), texts)]
    assert scores == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_prompt_that_is_no_program_is_left_out() -> None:
    assert code_of(f"```python\n{WHOLE}```", "def area(r):\n", "area") == ("", WHOLE)


def test_completions_of_base_models_are_not_touched() -> None:
    """A base model may write a fence behind its function: that must stay an error of its own."""
    raw = Prompt("t/0", PROMPT, (1,), REFERENCE)
    texts = ["    return pi * r * r\n", RIGHT["fenced"]]
    assert [score["passed"] for score in TASK.score([raw, raw], texts)] == [1.0, 0.0]


def test_in_chat_only_eos_ends_a_program(tokenizer: TextTokenizer) -> None:
    assert TASK.stop_for(chat_template=False) == TASK.stop
    assert TASK.stop_for(chat_template=True) == ()
    assert load_task("xsum").stop_for(chat_template=True) == ("\n",)
    data = TASK.load("official", 1, seed=0)
    for template in (False, True):
        assert TASK.prompt(data.examples[0], data, tokenizer, 10_000, 64, template).chat is template
