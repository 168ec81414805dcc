"""Backends that answer a request with a generation; the only place that knows more than one."""
