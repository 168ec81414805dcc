"""The public names, for type checkers and the reference; ``__init__.py`` imports each on first use."""

from spsbench.api import Run as Run
from spsbench.api import run as run
from spsbench.base.records import Example as Example
from spsbench.base.records import SamplingParams as SamplingParams
from spsbench.decode.protocols import Drafter as Drafter
from spsbench.decode.rejection import Draft as Draft
from spsbench.decode.rejection import Verdict as Verdict
from spsbench.decode.rules import Rule as Rule
from spsbench.drafters.registry import Context as Context
from spsbench.drafters.registry import DrafterKind as DrafterKind
from spsbench.drafters.registry import RuleKind as RuleKind
from spsbench.tasks.kind import TaskKind as TaskKind
from spsbench.tasks.metrics.kind import MetricKind as MetricKind

__version__: str
