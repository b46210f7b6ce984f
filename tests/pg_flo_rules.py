"""A rules file of pg_flo's own, as its routing test writes it: it looks below 'tables:' alone, and knows no such transforms."""

ROOTLESS_RULES = """\
users:
  - type: transform
    column: email
    parameters:
      operation: lowercase
orders:
  - type: filter
    column: total_amount
    parameters:
      operator: gt
      value: 100
  - type: transform
    column: items
    parameters:
      operation: jsonb_array_length
"""
