"""KM5xx: binding and running."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule("KM501", "circuit changed", "The circuit is not the one that the plan was made from.", "Resolve again."),
    Rule(
        "KM502",
        "model changed",
        "Formats, shapes or metadata are not those that the plan was made from.",
        "Resolve again for this model.",
    ),
    Rule(
        "KM503",
        "map changed",
        "A selected map is gone or says something else than when the plan was made.",
        "Resolve again.",
    ),
    Rule(
        "KM504",
        "contract changed",
        "A contract is gone or says something else than when the plan was made.",
        "Resolve again.",
    ),
    Rule(
        "KM505",
        "host lacks what the plan needs",
        "The plan was made for a host with features or devices that this one lacks.",
        "Resolve for this host.",
    ),
    Rule(
        "KM506",
        "kill switch changed",
        "Kill switches are part of the plan.",
        "Resolve again, or restore the environment.",
    ),
    Rule(
        "KM507",
        "plan does not cover the circuit",
        "The plan's decisions are not those of the circuit's ops.",
        "Resolve again.",
    ),
    Rule(
        "KM508",
        "prepared size",
        "A preparation hook made another size than its map declares: the budget was checked against a wrong number.",
        "Fix prepared_bytes or the hook.",
    ),
    Rule(
        "KM509",
        "cannot load an implementation",
        "A module or function named by a map cannot be imported.",
        "Install what it needs (an extra such as torch), or fix the map.",
    ),
    Rule(
        "KM510",
        "signature differs from the ports",
        "A builder returned a function whose parameter names are not the contract's ports, scratch and threads, in order.",
        "Name the parameters as the contract does.",
    ),
    Rule(
        "KM511",
        "weights that are not finite",
        "A weight block's factor (or a plain weight) is NaN or infinite; every output that reads it would be wrong.",
        "Get an undamaged file, or requantize from finite weights.",
    ),
    Rule(
        "KM512",
        "preparation failed",
        "A hook refused a weight (a factor that is not finite, an unfit layout) or found no memory for the result.",
        "See the message; to do without the preparation, exclude the provider.",
    ),
    Rule("KM520", "threads", "A session has at least one thread.", "Give a number from 1 up."),
    Rule("KM521", "phase not in the plan", "The circuit has no op in this phase.", "Call another phase."),
    Rule(
        "KM522",
        "inputs",
        "An input is missing, or the circuit has none of that name.",
        "Give exactly the circuit's inputs.",
    ),
    Rule(
        "KM523",
        "input does not fit",
        "An input has another dtype or shape than the circuit declares.",
        "Convert it before the call.",
    ),
    Rule(
        "KM524",
        "empty list",
        "An op reads a carried list before anything was appended.",
        "Append first, or guard the op with when.",
    ),
    Rule(
        "KM525",
        "dynamic dim not given",
        "Nothing in the call or the session's capacity gives a dynamic dim.",
        "Give it in capacity.",
    ),
    Rule(
        "KM526",
        "scratch size",
        "The size of a scratch buffer cannot be computed for these dims.",
        "Fix the map's size_bytes.",
    ),
    Rule(
        "KM527",
        "no memory for the arena",
        "The machine has not enough memory for outputs and scratch of this call.",
        "Use fewer rows a call (prefill_chunk).",
    ),
    Rule(
        "KM530",
        "kernel refused its input",
        "A row holds a NaN or an infinity, a value that the activation format cannot hold, or an index out of range. Nothing was written as if it were right.",
        "Look at what made that row.",
    ),
    Rule(
        "KM531",
        "executed is not selected",
        "Something ran that the plan did not choose.",
        "Report it: this must not happen.",
    ),
    Rule(
        "KM532",
        "no variant may run",
        "No enabled variant's guards hold.",
        "Every map has a base variant without guards: report it.",
    ),
    Rule("KM540", "recording unreadable", "The file is no .npz archive of plain arrays.", "Save it with numpy.savez."),
    Rule(
        "KM541",
        "recording incomplete",
        "The recording lacks an input of the circuit.",
        "Record it, or feed random input (leave --inputs out).",
    ),
    Rule(
        "KM542",
        "cannot save",
        "The output file cannot be written; nothing was left half-written.",
        "Choose a place that can be written.",
    ),
    Rule("KM543", "running takes a model file", "A circuit's reference storage has no bytes.", "Give a model file."),
)
