"""Connections to servers of others: mail by SMTP, and the OpenID Connect issuer."""
