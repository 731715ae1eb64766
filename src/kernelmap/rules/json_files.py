"""KM0xx: reading and parsing files."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule("KM001", "no such file", "The file does not exist.", "Fix the path."),
    Rule(
        "KM002",
        "cannot read",
        "The file exists and cannot be read (a folder, no permission, a device error).",
        "Fix the path or its permissions.",
    ),
    Rule(
        "KM003",
        "file too large",
        "JSON files are bounded so that a wrong file cannot exhaust memory.",
        "Give the file that was meant.",
    ),
    Rule("KM004", "byte order mark", "JSON is UTF-8 without a byte order mark (RFC 8259).", "Save it without."),
    Rule("KM005", "invalid UTF-8", "A byte is no UTF-8 text.", "Save the file as UTF-8."),
    Rule("KM006", "nested too deep", "No file that kernelmap reads needs such depth.", "Flatten it."),
    Rule("KM007", "not JSON", "The text is no JSON document.", "Mend the syntax at the caret."),
    Rule("KM008", "truncated", "The document ends before it is complete.", "Restore the rest of the file."),
    Rule(
        "KM009",
        "duplicate key",
        "Parsers disagree about which of two equal keys counts, so neither does.",
        "Remove one.",
    ),
    Rule("KM010", "top level is no object", "Every file holds one JSON object.", "Wrap it in {…}."),
    Rule(
        "KM011",
        "not a JSON number",
        "NaN and infinities are no JSON, and numbers must fit 64 bits.",
        "Write a finite number in range, or null.",
    ),
    Rule(
        "KM012",
        "lone surrogate",
        "Half of a surrogate pair is no character.",
        "Write the pair, or the character itself.",
    ),
)
