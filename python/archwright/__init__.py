"""Archwright: wheels of DeepInfer's kernel libraries, for one accelerator architecture at a time."""

__version__ = "0.1.0"
