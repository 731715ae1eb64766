"""KM1xx: schemas and expressions."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM101", "missing field", "A required field is not there.", "Add it; kernelmap schema NAME prints the format."
    ),
    Rule(
        "KM102",
        "unknown field",
        "Unknown fields are refused: a misspelt one would silently do nothing.",
        "Fix the spelling or remove it.",
    ),
    Rule(
        "KM103",
        "wrong type",
        "A value has another type than the field takes; nothing is converted.",
        "Write a value of the expected type.",
    ),
    Rule("KM104", "value not allowed", "The field takes one of a closed set of values.", "Use one of them."),
    Rule(
        "KM105", "badly formed", "A name or pattern has characters that are not allowed.", "Follow the expected form."
    ),
    Rule("KM106", "out of bounds", "A number or length lies outside its bounds.", "Use a value within them."),
    Rule(
        "KM107",
        "rule broken",
        "Fields contradict one another, or a value breaks a rule of its type.",
        "See the message.",
    ),
    Rule("KM111", "expression syntax", "The expression cannot be parsed.", "Mend it at the caret."),
    Rule(
        "KM112", "no place in a size", "Sizes are made of 64-bit ints, dims, + - * // and functions.", "Use only these."
    ),
    Rule(
        "KM113",
        "operand types",
        "An operator, function or index was given a truth value, number or text where another kind is needed.",
        "Mend the operand.",
    ),
    Rule(
        "KM114",
        "unknown function",
        "The function does not exist or takes another number of arguments.",
        "See the near names.",
    ),
    Rule("KM115", "unknown name", "Nothing gives the name a value here.", "Declare it, or fix the name."),
    Rule(
        "KM116",
        "no value here",
        "The expression has no value in this place: a wrong type, an index out of range, no layer.",
        "Mend the expression.",
    ),
    Rule(
        "KM117",
        "arithmetic",
        "Division by zero, overflow, a negative size, or a row that is no whole number of blocks.",
        "Mend the numbers.",
    ),
)
