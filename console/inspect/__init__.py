"""Looking into a group's streams without disturbing anybody: messages, where a row is, what rules make of changes."""
