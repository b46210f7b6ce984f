"""``pgsluice nats``: what an administrator of NATS permits pgsluice's users, and makes for them."""
