"""What operators read and do, below the command line and web pages: dead letters, pending records, claims, actions."""
