"""aiobotocore and SQS, in a loop of the application's own."""
