"""External engines: what they are asked, what they answer, and how they are started."""
