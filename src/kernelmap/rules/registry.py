"""KM2xx: maps, contracts and the registry."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM201",
        "map or circuit declared twice",
        "Two map files declare one id, or a provider package has a circuit of a name that is taken; the plan could not say which ran.",
        "Rename one, or leave the folder that shadows the other out of --maps.",
    ),
    Rule(
        "KM202",
        "id is not the file name",
        "Files are named by what they declare, so that a reader finds them.",
        "Rename the file or the id.",
    ),
    Rule(
        "KM203",
        "group without contract",
        "A map names an equivalence group that no contract declares: nothing says what it computes.",
        "Fix the spelling, add the format tuple to the family's contract, or write the contract.",
    ),
    Rule(
        "KM204",
        "equal priority",
        "Two maps of a group share a phase and a priority. A tie can decide nothing, whatever their status or ISA.",
        "Give one of them another priority.",
    ),
    Rule(
        "KM205",
        "dynamic dim in constraints",
        "Constraints are checked when a plan is made; a dynamic dim is known only at run time.",
        "Move the limit to shape_constraints of a variant.",
    ),
    Rule(
        "KM206",
        "fallback missing or undeclared",
        "A variant that may be kept from running must name another declared variant to take over.",
        "Name a declared variant as fallback, in the end the base variant.",
    ),
    Rule(
        "KM207",
        "implementation outside provider packages",
        "A map may only name code of a package that registered itself in the entry point group kernelmap.providers, so that a data file can never import an arbitrary module.",
        "Move the code into such a package, or register the package.",
    ),
    Rule(
        "KM208",
        "op differs from the contract's",
        "A map's op must be the op of its group's contract.",
        "Fix the op or the group.",
    ),
    Rule(
        "KM209",
        "unknown name in a size",
        "Size expressions may name dims of the contract (and threads, in scratch) only.",
        "Use a declared dim.",
    ),
    Rule(
        "KM210",
        "unknown dim",
        "A constraint or guard names a dim that the contract does not declare.",
        "Use a declared dim.",
    ),
    Rule(
        "KM211",
        "weight preparation port",
        "A hook names something that is no weight port of the contract, or a port twice.",
        "Name each prepared weight port once.",
    ),
    Rule(
        "KM213",
        "two contracts for one group",
        "A group means one arithmetic; two contracts would let a provider choose.",
        "Remove one, or rename its group.",
    ),
    Rule(
        "KM214",
        "scratch name taken",
        "Scratch buffers become parameters beside the ports and need names of their own.",
        "Rename the scratch buffer.",
    ),
    Rule(
        "KM215",
        "fallback before its variant",
        "Variants are tried in listed order; a fallback stands behind its variant, which also rules out circles.",
        "Reorder the variants.",
    ),
    Rule("KM216", "no such folder of maps", "A folder given with --maps does not exist.", "Give a folder that exists."),
    Rule(
        "KM217",
        "function not found",
        "A map names a module or function that no source file defines.",
        "Fix the path, or write the function.",
    ),
    Rule(
        "KM218",
        "evidence for an unknown provider",
        "An evidence file names a provider that no map declares.",
        "Remove the file, or restore the map.",
    ),
    Rule(
        "KM221",
        "port name used twice",
        "Ports, parameters and threads share one name space: they become arguments.",
        "Rename one.",
    ),
    Rule(
        "KM222",
        "undeclared dim",
        "A shape, dynamic_dims or alignment names something that dims does not declare (or is dynamic where a static dim is needed).",
        "Declare it in dims, or fix the name.",
    ),
    Rule(
        "KM223",
        "template hole",
        "A hole {port} or {port.act} must name a weight port that the format tuples give.",
        "Fix the name, or add formats.",
    ),
    Rule(
        "KM224",
        "unknown format or number type",
        "Formats and number types form a closed vocabulary.",
        "Use one of the near names.",
    ),
    Rule(
        "KM225",
        "unknown name in requires",
        "The contract's requirements may name its static dims and parameters.",
        "Fix the name.",
    ),
    Rule(
        "KM226",
        "format tuple",
        "Each tuple of formats gives exactly the weight ports that the templates need, once.",
        "Complete or remove the tuple.",
    ),
    Rule(
        "KM251",
        "provider can never be selected",
        "In each of its phases a production provider of higher priority is always eligible.",
        "Raise its priority, or remove it.",
    ),
    Rule(
        "KM252",
        "group without production provider",
        "Such a group resolves only through a route, or not at all.",
        "Promote a provider, or accept that circuits must route one.",
    ),
    Rule(
        "KM253",
        "production without evidence",
        "The provider serves by default and no certificate proves that it meets its contract.",
        "Certify it.",
    ),
    Rule(
        "KM254",
        "candidate that no circuit routes",
        "Nothing shipped exercises the candidate.",
        "Route it, promote it, or leave it while it is being proved.",
    ),
    Rule(
        "KM255",
        "stale certificate",
        "A certificate is about another contract, map or source than those at hand; audit --strict and promote refuse it.",
        "Certify the provider anew.",
    ),
)
