"""Child processes of pgsluice: started, watched, started again and ended. Knows no group and no command."""
