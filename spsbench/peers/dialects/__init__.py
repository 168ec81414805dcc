"""How servers differ: what each wants to be asked, and where its answers hold what."""
