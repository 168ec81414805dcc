"""The first lines of the sandboxed interpreter: take the sources from the judge, then serve.

It is passed as ``python -c`` and needs nothing of the package. Descriptor 0 is the socket to the
judge; 1 and 2 are the null device.
"""

import json
import os
import socket
import sys
import types

control = socket.socket(fileno=os.dup(0))
os.dup2(1, 0)
with control.makefile("rb") as stream:
    bundle = json.loads(stream.readline())
# random would draw a new seed in every fork; each program gets one from the judge, which reveals
# nothing of the tests' own.
register, os.register_at_fork = os.register_at_fork, lambda **hooks: None
for name, source in bundle["modules"]:
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
os.register_at_fork = register
sys.modules["spsbench.parts.judge.inside.zygote"].serve(control, bundle["settings"])
