"""Commands that read the settings of a server and open what they name: they need no key, and no API that runs."""
