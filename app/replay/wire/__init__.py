"""Wire forms of requests and responses, decoded into arrays."""
