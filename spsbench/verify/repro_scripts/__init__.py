"""Parts of the scripts that ``audit --repro`` writes: what all of them share, and one part an engine.

A script is ``common`` and the part of its engine in one file; none of them imports anything of spsbench.
"""
