"""The adapter of DynamoDB."""
