"""The tests that run again with another interpreter or with other versions of what the library needs."""

SUITES = (
    "tests/conformance/test_memory.py",
    "tests/conformance/test_postgresql.py",
    "tests/conformance/test_rabbitmq.py",
    "tests/conformance/test_sqlite.py",
    "tests/conformance/test_transactions.py",
    "tests/adapters/postgresql",
    "tests/adapters/rabbitmq",
    "tests/adapters/sqlite",
    "tests/endpoint",
    "tests/runtime",
)
"""The suites on SQLite, PostgreSQL and RabbitMQ, and all that runs handlers, tasks and processes."""
DRIVERS = (
    "tests/conformance/test_azure.py",
    "tests/conformance/test_cosmos.py",
    "tests/conformance/test_dynamodb.py",
    "tests/conformance/test_mariadb.py",
    "tests/conformance/test_mongodb.py",
    "tests/conformance/test_nats.py",
    "tests/conformance/test_postgresql.py",
    "tests/conformance/test_rabbitmq.py",
    "tests/conformance/test_redis.py",
    "tests/conformance/test_redis_streams.py",
    "tests/conformance/test_s3.py",
    "tests/conformance/test_sqlite.py",
    "tests/conformance/test_sqs.py",
    "tests/adapters/kafka",
    "tests/formats",
    "tests/integrations/test_aws_lambda.py",
    "tests/integrations/test_azure_functions.py",
    "tests/integrations/test_celery.py",
    "tests/integrations/test_django.py",
    "tests/integrations/test_faststream.py",
    "tests/integrations/test_fastapi_route.py",
    "tests/integrations/test_idempotency_key.py",
    "tests/integrations/test_requests_done_once.py",
    "tests/sql",
    "tests/telemetry",
)
"""Tests that use each dependency: the drivers against their servers, body libraries, and what runs inside a framework."""
NORMAL = "not slow and not soak"
QUICK = {"ONCEONLY_QUICK": "1", "ONCEONLY_FUZZ": "50"}
"""The environment of `make test-quick`."""
