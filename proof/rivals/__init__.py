"""Other libraries' conformance suites for stores, run against the stores of semel: `python -m proof.rivals`.

The adapters translate one library's protocol of stores into calls of the ledger. They decide nothing: what a
suite asks and semel does otherwise is listed in `suites.DIFFERS`.
"""
