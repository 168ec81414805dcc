"""Released engines with a known defect of their sampling, and the audit that must find it."""
