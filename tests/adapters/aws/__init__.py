"""The adapters for DynamoDB and S3."""
