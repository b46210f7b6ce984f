"""``pgsluice nats``: the permissions, streams and buckets that an administrator of NATS gives to the users of pgsluice."""
