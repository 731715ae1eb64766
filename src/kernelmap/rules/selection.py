"""KM4xx: selection: why a provider is not eligible, and why an op has none."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM401",
        "no route allows it",
        "The provider is a candidate; candidates compete only where a route of the circuit, the policy or the command line allows them.",
        "Pass --route OP[:PHASE]=ID, or promote it with evidence.",
    ),
    Rule(
        "KM402",
        "other phase",
        "The map does not list this phase.",
        "Nothing, if the provider is not meant for the phase.",
    ),
    Rule("KM403", "diagnostic", "Diagnostic providers are run by name in tools and never selected.", "Nothing."),
    Rule("KM404", "deprecated", "Deprecated providers are refused.", "Use another provider."),
    Rule(
        "KM405",
        "ISA",
        "The host lacks features that the provider requires.",
        "Run on another host, or use another provider.",
    ),
    Rule("KM406", "device", "The host lacks the device.", "Run on another host."),
    Rule(
        "KM407",
        "static dims",
        "The model's dims do not fit the map's constraints.",
        "Nothing, if the kernel cannot do these dims.",
    ),
    Rule(
        "KM408",
        "preparation budget",
        "Preparing the weights of every layer that the map would serve takes more than its budget: all or none.",
        "Raise max_total_bytes in the map, or use another provider.",
    ),
    Rule(
        "KM410",
        "evidence",
        "The policy requires a passing certificate for this contract and map.",
        "Certify the provider, or set --evidence warn.",
    ),
    Rule("KM411", "excluded", "The policy excludes the provider.", "Take it out of exclude."),
    Rule("KM412", "another is pinned", "The policy pins another provider for this op.", "Remove the pin."),
    Rule(
        "KM413",
        "outranked",
        "The provider is eligible, and another eligible one has a higher priority.",
        "Nothing; to compare, pin or exclude.",
    ),
    Rule(
        "KM414",
        "foreign: not executable",
        "The map describes a provider of another engine, imported to be compared; there is no code of it here.",
        "Nothing makes it eligible; write a provider of the group instead.",
    ),
    Rule(
        "KM450",
        "no provider is eligible",
        "Every provider of the group was refused, each for the reasons listed. Another group is never looked at.",
        "Mend one of the reasons.",
    ),
    Rule(
        "KM451",
        "unknown group",
        "No contract declares the group that the stored formats fill in, so nothing says what it should compute.",
        "See the nearest groups; a mix of formats needs a contract and a map of its own.",
    ),
    Rule("KM452", "tie", "Two eligible providers share the highest priority.", "Rank them."),
    Rule(
        "KM455",
        "pinned provider not eligible",
        "A pin means this provider or an error; it overrides no check.",
        "Mend the reason, or remove the pin.",
    ),
    Rule(
        "KM456", "policy names an unknown op", "A typo in a policy must not look obeyed.", "Use an op of the circuit."
    ),
    Rule("KM457", "unknown provider", "No map declares this provider.", "See the near names, or kernelmap list."),
    Rule("KM458", "no such op", "The circuit has no such op, or not in that layer or phase.", "Use a listed op."),
    Rule(
        "KM459",
        "provider of another group",
        "The provider computes something else; groups never stand in for one another.",
        "Ask about a provider of the op's group.",
    ),
    Rule(
        "KM460",
        "routed candidate not eligible",
        "A route allows a candidate that a check refused; another provider serves.",
        "Mend the reason, or remove the route.",
    ),
    Rule(
        "KM461",
        "selected without evidence",
        "The plan uses a provider that no certificate covers.",
        "Certify it, or set --evidence ignore.",
    ),
    Rule("KM462", "unknown kill switch", "A kill switch is set that no variant declares.", "Fix the name."),
)
