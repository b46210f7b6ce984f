"""Code for the life of every process: it starts, stops on request, retries, and names a defect."""
