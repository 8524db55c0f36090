"""A loop of your own with confluent-kafka."""
