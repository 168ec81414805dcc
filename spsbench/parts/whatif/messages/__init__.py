"""What the four commands say beside numbers, a file a subject."""
