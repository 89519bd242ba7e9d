"""The stores that go through the conformance suite, each with its inputs.

`tests/contract/test_store_conformance.py` has the cases for stores of definitions (`definitions.py`), and
`tests/contract/test_outbox_conformance.py` those for outboxes (`outboxes.py`).
"""
