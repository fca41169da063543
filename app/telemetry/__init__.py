"""What the service tells about its own work: metrics, access logs, traces."""
