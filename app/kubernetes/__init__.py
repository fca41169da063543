"""The configuration gate in a cluster: objects, admission reviews, policies."""
