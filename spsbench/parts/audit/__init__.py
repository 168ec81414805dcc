"""Is the sampler lossless? Tests through the real code path, and wrong samplers that must fail them."""

EVIDENCE_KEY = "spsbench_evidence"
"""A file whose first line has it is evidence, see ``spsbench.parts.audit.evidence_file``."""
