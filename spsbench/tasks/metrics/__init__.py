"""Scores of finished texts and programs: ROUGE, pass@k."""
