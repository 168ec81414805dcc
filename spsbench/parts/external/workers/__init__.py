"""Workers: one engine each, behind the protocol of ``docs/engine-protocol.md``."""
