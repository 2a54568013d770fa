"""The KV store: keys, records, the local store on disk, policies. Speaks of token ids, keys and bytes; knows no model.

Every failure in here is a miss that is counted, never a wrong byte and never a wait without an end.
"""
