"""KM3xx: circuits and their elaboration for a model."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM301",
        "no such circuit",
        "No circuit has this name, or none (or more than one) serves the model's architecture.",
        "Name a circuit, give its path, or add its folder with --circuits.",
    ),
    Rule(
        "KM302",
        "architecture not served",
        "The circuit does not list the model's architecture.",
        "Use the circuit that does.",
    ),
    Rule(
        "KM303",
        "unknown option",
        "The circuit has no such option, or the option no such choice.",
        "Use a listed option and choice.",
    ),
    Rule(
        "KM304",
        "config value",
        "A config value is missing from the model's metadata, of another type, or too short.",
        "Give a default, or fix the key or type.",
    ),
    Rule(
        "KM305",
        "unknown name in an expression",
        "An expression names config, an option or a dim that the circuit does not declare.",
        "Declare it, or fix the name.",
    ),
    Rule(
        "KM306", "not a whole number", "Dims, sizes and row bounds are whole numbers from 0 up.", "Fix the expression."
    ),
    Rule(
        "KM307",
        "group template",
        "A template is malformed, names neither a bound weight nor an option, or asks for the activation partner of a format that has none.",
        "Fix the template or the weights.",
    ),
    Rule(
        "KM308",
        "tensor not in the model",
        "A weight binding found no tensor, or rows that the tensor does not have.",
        "Fix the pattern, add alternatives (any_of), or mark it optional.",
    ),
    Rule(
        "KM309",
        "op and contract differ",
        "The op binds ports, dims or parameters that its group's contract lacks, or leaves out what it needs.",
        "Bind exactly the contract's ports.",
    ),
    Rule(
        "KM310",
        "stored format",
        "A tensor is stored in another format than the group's contract takes. Reading it at another format's stride gives plausible garbage, so it is refused.",
        "Let the group's template follow the stored format, or convert the model.",
    ),
    Rule(
        "KM311",
        "dtype of an edge",
        "A value or state has another dtype than the port takes.",
        "Use a contract for that dtype, or an op that converts.",
    ),
    Rule(
        "KM312",
        "shape mismatch",
        "Two places give a dim different sizes, or a shape has another rank.",
        "Fix the edge, the dims, or the contract.",
    ),
    Rule(
        "KM313",
        "dim not bound",
        "Nothing gives a dim, or a static dim is given something that is known only at run time.",
        "Bind it in the op's dims.",
    ),
    Rule(
        "KM314",
        "alignment",
        "A dim is no multiple of what the storage format's blocks need.",
        "The group cannot serve this model.",
    ),
    Rule(
        "KM315",
        "contract requirement",
        "A predicate that the contract requires does not hold for these dims and parameters.",
        "The group cannot serve this model; see the contract.",
    ),
    Rule(
        "KM316",
        "parameter value",
        "A parameter has the wrong type or lies outside its bounds.",
        "Give a value that the contract allows.",
    ),
    Rule(
        "KM317",
        "nothing makes a value",
        "An op reads, or the circuit returns, a value that no earlier op, input or carry makes.",
        "Fix the name or the order.",
    ),
    Rule(
        "KM318",
        "blocks and layer rules",
        "A rule names a block that does not exist, a block is never used, or no rule covers a layer.",
        "Fix the names, or add a rule without when.",
    ),
    Rule(
        "KM319",
        "single assignment",
        "A name is made twice in one layer, or carry and state are used other than declared.",
        "Rename, or declare it.",
    ),
    Rule(
        "KM320",
        "tensor that no op reads",
        "Silently ignored weights change results.",
        "Read it, list it in ignores, or mark the circuit partial.",
    ),
    Rule(
        "KM321",
        "reference storage",
        "The circuit has no reference storage, or it is wrong.",
        "Give a model file, or fix storage.",
    ),
    Rule("KM330", "route", "A circuit routes an op or a provider that does not exist.", "Fix the name."),
)
