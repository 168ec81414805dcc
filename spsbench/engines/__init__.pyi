"""Engines: from a request to a generation with its records."""

from spsbench.engines.arms import GRAPHED as GRAPHED
from spsbench.engines.arms import TaskAndArms as TaskAndArms
from spsbench.engines.arms import refuse_beams as refuse_beams
from spsbench.engines.derivation import derivation_of as derivation_of
from spsbench.engines.local import BatchedEngine as BatchedEngine
from spsbench.engines.local import EagerEngine as EagerEngine
from spsbench.engines.local import Engine as Engine
from spsbench.engines.rescore import Reading as Reading
from spsbench.engines.rescore import own_entries as own_entries
from spsbench.engines.rescore import score_stats as score_stats
from spsbench.engines.rescore import teacher_force as teacher_force
from spsbench.engines.rows_held import rows_held_against as rows_held_against
from spsbench.engines.rows_held import with_explained as with_explained
