"""DynamoDB, S3 and SQS, through aiobotocore."""
