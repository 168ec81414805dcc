"""What any drafter and any K would give on texts that the target has already written."""
