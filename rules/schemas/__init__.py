"""Schemas of payloads, as users register them, checked and turned into the engine's form.

A schema becomes a *layout*: plain data that says how its bytes lie, without the text and without
parts that decoding does not need. `PayloadDecoder.java` reads it.
"""
