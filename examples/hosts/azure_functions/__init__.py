"""Azure Functions: a Service Bus trigger, and a timer."""
