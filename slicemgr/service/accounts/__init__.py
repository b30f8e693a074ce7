"""Accounts: authentication, sign-in, passwords, sessions, tokens and ssh keys."""
