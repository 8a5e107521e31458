"""The types of Google's package, imported from here by all tests.

Its source has escape sequences that are not valid. Python warns of them when it compiles the
package, and pytest would turn the warning into an error: only an installer that compiles what it
installs hides that.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from google.genai import types

__all__ = ["types"]
