"""What a process shows of itself: its metrics, whether it moves, whether it may do its work; and how that gets out."""
