"""Whether speculation can pay on this machine, without a task: forwards, floors, and forced acceptance."""
