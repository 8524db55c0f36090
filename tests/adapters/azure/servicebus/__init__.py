"""The adapter of Azure Service Bus."""
