"""The broker's benchmark: see run.py."""

from run import main

main()
