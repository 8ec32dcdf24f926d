"""The proof: every promise tried thousands of times, with the faults that it is made against."""
