"""A loop of your own with aiokafka."""
