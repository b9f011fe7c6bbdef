"""Puts the program that PROGRAM names into the wheel, and PLATFORM into the wheel's name."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Program(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["tag"] = "py3-none-" + os.environ["PLATFORM"]
        build_data["pure_python"] = False
        build_data["shared_scripts"] = {os.environ["PROGRAM"]: "locksidecar"}
