"""Alembic migrations, from the first table on. Run by `slicemgr db upgrade` (store.schema)."""
