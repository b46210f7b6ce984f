"""The endpoints, by what they are about; each module ends with its rows of the table."""
