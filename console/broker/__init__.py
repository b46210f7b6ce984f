"""``pgsluice nats``: the permissions that an administrator of NATS gives to the users of pgsluice, and the streams and buckets
that the administrator creates for them."""
