"""The doors for programs: the only composition root (``launch``) and the only text (``text``, ``choice``, ``llm``)."""
