"""Audits of engines: whether their texts follow the target, and where they do not, why."""

EVIDENCE_KEY = "spsbench_evidence"
"""A file whose first line has it is evidence, see ``spsbench.parts.audit.evidence_file``."""
