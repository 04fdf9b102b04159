"""Names in SQL as Spark compares them."""


def folded(name: str) -> str:
    """Return what of two names is the same if Spark takes them for the same.

    As `String.equalsIgnoreCase` of Java: each character in upper case, and that in lower case. So
    U+017F is an s, U+212A a k, U+0130 and U+0131 are an i, which `lower` does not know.
    """
    if name.isascii():
        return name.lower()
    return "".join(map(_folded, name))


def _folded(character: str) -> str:
    upper = character.upper()
    # Java maps a character to one; `ß` stays as it is.
    return (upper if len(upper) == 1 else character).lower()[0]
