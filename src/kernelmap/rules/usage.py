"""KM75x and KM9xx: wrong use, and what must not happen."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM751",
        "malformed policy word",
        "A route or pin is OP[:PHASE]=ID, an option NAME=VALUE.",
        "Write it in that form.",
    ),
    Rule(
        "KM901",
        "unexpected error",
        "A defect of kernelmap itself.",
        "Set KERNELMAP_TRACEBACK=1, run again, and report what it prints.",
    ),
    Rule("KM902", "no such schema or rule", "The name is none that exists.", "See the near names."),
    Rule(
        "KM903",
        "would overwrite",
        "A file that would be scaffolded exists already; nothing was written.",
        "Choose another id, or remove the file.",
    ),
    Rule(
        "KM904",
        "cannot scaffold there",
        "The provider package or folder of maps is not writable or not registered.",
        "Give --package and --maps of a package of your own.",
    ),
    Rule(
        "KM905",
        "unknown kind of file",
        "The file is no map, contract, circuit or other file that kernelmap knows.",
        "Begin it with $schema, or check its keys.",
    ),
    Rule(
        "KM906",
        "nothing to prove",
        "A conformance suite was asked for a package that is not registered, or that has no provider.",
        "Register the package (entry point group kernelmap.providers) and give it maps in its folder kernel_maps.",
    ),
    Rule(
        "KM907",
        "no circuit can be made up",
        "A circuit is scaffolded from an op's contract with sizes of its own choice; for this contract none fit, or its ops do not stand alone.",
        "Write the circuit by hand: copy a shipped one and replace its ops.",
    ),
)
