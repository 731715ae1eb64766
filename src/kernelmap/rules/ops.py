"""KM55x: ready operations on torch tensors."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM550",
        "torch is missing",
        "The functions of kernelmap.ops take and return torch tensors; everything else works without torch.",
        "pip install 'kernelmap[torch]'.",
    ),
    Rule(
        "KM551",
        "argument's type",
        "An argument has a dtype that the operation's contract does not allow, or not the same as one that it shares a type variable with.",
        "Convert it; the contract (kernelmap show) lists the dtypes of each port.",
    ),
    Rule(
        "KM552",
        "argument's shape",
        "Tensors do not have the shapes of the contract, or not the same size where they share a dim.",
        "Compare the shapes with those that the message expects.",
    ),
    Rule(
        "KM553",
        "arguments on several devices",
        "All tensors of one call must be on the device of the first.",
        "Move them with .to(device).",
    ),
    Rule(
        "KM554",
        "refused values",
        "The kernel refused a token's row: an expert index is below 0, or not below the number of experts.",
        "Look at what selected that expert.",
    ),
    Rule(
        "KM555",
        "no gradient",
        "The operation is forward only: its weights are quantized, and no gradient is defined.",
        "Call it under torch.no_grad() or torch.inference_mode(), or detach its inputs.",
    ),
)
