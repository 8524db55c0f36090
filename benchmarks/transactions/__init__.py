"""What a transaction outside of handlers costs, against one with an outbox row by hand, and when its message is there."""
