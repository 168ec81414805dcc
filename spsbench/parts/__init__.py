"""Parts that a user could do without: each a folder with its commands, its face, its tests and its page."""
