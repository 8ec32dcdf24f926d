"""Prints the SAM template of the function: its queue, its tables, its permissions and its alarms."""

import sys

from shipments import DEPLOYMENT

from semel.apps import stack

if __name__ == "__main__":
    sys.stdout.write(stack.text([DEPLOYMENT], "prod"))
