"""How fast would it be, and why not more? From forwards alone, existing texts, tables, servers under load."""
