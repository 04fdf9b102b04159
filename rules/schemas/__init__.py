"""Schemas of payloads: what users register, checked and turned into what the engine decodes by.

A schema becomes a *layout*: plain data that says how its bytes lie, without the text and without
what decoding does not need. `PayloadDecoder.java` reads it.
"""
