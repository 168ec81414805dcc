"""What reports say beside their numbers, a file a subject."""
