"""The parts that brokers have in common."""
