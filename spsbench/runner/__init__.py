"""From a configuration to a finished run: plan everything, measure the arms in turns, finalize."""

from __future__ import annotations

from spsbench.runner.distributed import execute_on
from spsbench.runner.engines import EngineFactory
from spsbench.runner.execute import Outcome, execute, load, require_continuable
from spsbench.runner.finalize import finalize, score
from spsbench.runner.foreign_texts import REPORTED, Audit, Foreign, Reader, is_exact, reading_of, told_in
from spsbench.runner.material import Material, Models, find_material, find_models
from spsbench.runner.peers import model_folder
from spsbench.runner.plan import Plan, Watcher, plan, require_decoder
from spsbench.runner.room import room_of
from spsbench.runner.stopping import Reason, StoppingRule, derive_seed, duration, turns

__all__ = [
    "REPORTED",
    "Audit",
    "EngineFactory",
    "Foreign",
    "Material",
    "Models",
    "Outcome",
    "Plan",
    "Reader",
    "Reason",
    "StoppingRule",
    "Watcher",
    "derive_seed",
    "duration",
    "execute",
    "execute_on",
    "finalize",
    "find_material",
    "find_models",
    "is_exact",
    "load",
    "model_folder",
    "plan",
    "reading_of",
    "require_continuable",
    "require_decoder",
    "room_of",
    "score",
    "told_in",
    "turns",
]
