"""Language models behind one small protocol; the only owners of KV caches."""
