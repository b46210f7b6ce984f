"""Processes of ours that another one of ours starts, watches, starts again and ends. It knows no group and no command."""
