"""The transport that sends to Kafka."""
