"""What is specific to the transport on NATS JetStream."""
