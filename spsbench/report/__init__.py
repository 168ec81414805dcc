"""How results are shown: every table is a pure function of the summary and the run's own record."""
