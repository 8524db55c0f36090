"""What onceonly costs on brokers other than RabbitMQ, compared with what the broker's driver can do here."""
