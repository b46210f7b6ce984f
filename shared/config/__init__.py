"""Configuration: flag, else environment variable, else YAML file, else default, for every key alike.

``settings`` declares each command's options (``declaration`` defines how); a sink declares its own in its folder.
``load`` merges and checks everything before anything starts, and ``make`` builds the typed settings of the result.
"""

from pgsluice.shared.config.declaration import make, options_of
from pgsluice.shared.config.load import load, load_text, notices
from pgsluice.shared.config.values import Notice, Values

__all__ = ["Notice", "Values", "load", "load_text", "make", "notices", "options_of"]
