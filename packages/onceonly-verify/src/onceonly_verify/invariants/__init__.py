"""What must hold in states of a world."""
