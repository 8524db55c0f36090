"""A function in AWS Lambda, whose event source is a queue in SQS. `deploy` has a template for AWS."""
