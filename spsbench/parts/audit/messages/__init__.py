"""What audits say, a file a subject."""
