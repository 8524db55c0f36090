"""A local stand-in for Azure Service Bus: enough of AMQP 1.0 and of its administration for the unmodified client.

It models queues, topics, subscriptions that forward, locks that end, scheduled messages, delivery counts, sessions, duplicate
detection and dead-letter queues. All is in memory. It is not the service: see docs/reference/service-bus.md.
"""
