"""Alert rules, the Grafana dashboard, and Prometheus itself."""
