"""TLS for the webhook: serving a certificate that is renewed under it, and making one."""
