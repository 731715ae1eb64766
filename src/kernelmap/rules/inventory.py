"""KM6xx: inventories of model files (GGUF, safetensors, JSON profiles)."""

from __future__ import annotations

from kernelmap.rules.rule import Rule

_DAMAGED = "Compare size and checksum with the publisher's and fetch the file again."

RULES = (
    Rule(
        "KM601",
        "the model file cannot be read",
        "There is no such file, it may not be read, it is empty, or it is a device or pipe.",
        "Check the path and its permissions.",
    ),
    Rule(
        "KM602",
        "this is no model",
        "The content is neither GGUF nor safetensors nor a JSON profile, it is a git-lfs pointer, or the folder holds "
        "no model or several.",
        "Name one model file; fetch git-lfs files with git lfs pull.",
    ),
    Rule(
        "KM603",
        "GGUF version or byte order",
        "Only little-endian GGUF of versions 2 and 3 is read.",
        "Convert the model again with a current llama.cpp, for a little-endian machine.",
    ),
    Rule(
        "KM604",
        "the file ends too early",
        "A length or count in the header promises more bytes than the file has.",
        _DAMAGED,
    ),
    Rule(
        "KM605",
        "over a limit of the reader",
        "A count or length is larger than in any real model; limits keep hostile files from costing memory or time.",
        "If the model is real, report it: the limit is a constant of the reader, named in the message.",
    ),
    Rule(
        "KM606",
        "metadata value",
        "A metadata value has an unknown type, is an array of arrays, a bool other than 0 and 1, or not finite.",
        "Write the file again with a current converter.",
    ),
    Rule(
        "KM607",
        "metadata key twice",
        "Two key-values have one key, so that readers may disagree about the model.",
        "Remove one of them and write the file again.",
    ),
    Rule(
        "KM608",
        "text of a model file",
        "A name or text is not UTF-8, or a name holds characters that cannot be printed.",
        _DAMAGED,
    ),
    Rule(
        "KM609",
        "no architecture",
        "The metadata general.architecture, by which a circuit is found, is missing or no text.",
        "Write the file again with a converter that sets it.",
    ),
    Rule(
        "KM610",
        "alignment",
        "general.alignment is no power of two, so that the data section has no defined beginning.",
        "Write the file again with a current converter.",
    ),
    Rule(
        "KM611",
        "dims of a tensor",
        "A tensor has no dims or too many, a dim of 0, a product that overflows, or rows that are no whole blocks.",
        _DAMAGED,
    ),
    Rule(
        "KM612",
        "storage format",
        "The type of a tensor has no known size, so that neither its end nor an overlap can be checked.",
        "Update the gguf package if the type is new; in a profile, correct the name.",
    ),
    Rule(
        "KM613",
        "tensor twice",
        "Two tensors have one name, in one file or in two shards.",
        "Write the model again; keep shards of different models in different folders.",
    ),
    Rule(
        "KM614",
        "misaligned tensor",
        "The offset of a tensor is no multiple of general.alignment.",
        "Write the file again with a current converter.",
    ),
    Rule(
        "KM615",
        "tensor outside the file",
        "The bytes of a tensor end after the file does, or its offsets do not span its size.",
        _DAMAGED,
    ),
    Rule(
        "KM616",
        "tensors overlap",
        "Two tensors share bytes: at least one of them would be read wrong.",
        _DAMAGED,
    ),
    Rule(
        "KM617",
        "shard missing",
        "A file of a sharded model is not beside the others.",
        "Fetch all shards into one folder and keep their names.",
    ),
    Rule(
        "KM618",
        "shards disagree",
        "File names, what the files or the index say about the set, and the tensors in them do not fit together.",
        "Fetch all shards of one model again and keep their names.",
    ),
    Rule(
        "KM619",
        "safetensors header",
        "The header is no JSON object of tensors, or the safetensors library refuses the file.",
        _DAMAGED,
    ),
    Rule(
        "KM620",
        "no such tensor",
        "The inventory has no tensor of that name.",
        "List the names with kernelmap inventory.",
    ),
    Rule(
        "KM621",
        "the model file changed",
        "Size or time of change differ from when the header was read: offsets may now point anywhere.",
        "Read the inventory and resolve again.",
    ),
    Rule(
        "KM622",
        "no bytes",
        "The inventory came from a profile, which holds facts but no weights.",
        "Give the model file itself.",
    ),
)
