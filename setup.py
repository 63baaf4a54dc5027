"""Lists the packages, which pyproject.toml cannot do when one lies elsewhere; all else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["llmkit", "llmkit.*"]), "llmkit.tools"])
