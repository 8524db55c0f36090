"""What the memory of handled messages costs: its bytes, claiming into it when it is large, and forgetting."""
