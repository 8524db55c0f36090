"""Frameworks around an endpoint, whose requests and messages are done once. Nothing else imports these modules."""
