"""Worker processes, their supervisor and what they share."""
