"""The test kit: for people who build hosts, stores and views on a ledger."""
