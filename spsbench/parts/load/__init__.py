"""Servers under load: how many tokens a second, how soon, and up to what concurrency speculation pays."""
