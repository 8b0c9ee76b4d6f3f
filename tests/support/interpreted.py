"""The cases of `fused_cases` by Triton's interpreter on the CPU, as JSON: `python interpreted.py float64`.

A process of its own, because Triton decides when it is imported whether it interprets.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
from fused_cases import compared

if __name__ == "__main__":
    print(json.dumps(compared(getattr(torch, sys.argv[1]), "cpu")))
