"""FastStream on Kafka."""
