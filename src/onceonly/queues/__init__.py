"""What brokers have in common, in parts that an adapter can use one by one. None of them knows a broker."""
