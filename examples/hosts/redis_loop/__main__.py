"""Run both applications on the local servers: `python -m examples.hosts.redis_loop`."""

from examples.hosts import harness, redis

HOST = harness.Host.of("examples.hosts.redis_loop", redis.RedisWire)

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_REDIS", redis.URL))
