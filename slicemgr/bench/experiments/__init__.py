"""The experiments: what each does step by step."""
