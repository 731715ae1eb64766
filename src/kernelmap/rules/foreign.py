"""KM85x and KM86x: maps of other engines."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule("KM850", "neither map nor registry", "A file to import holds no operation and no list of kernels.", "Leave it out, or see whether it is the file that was meant."),
    Rule("KM851", "field that an import needs", "A field of a foreign map is missing or of another kind than its engine's maps have, so that nothing certain can be said of its selection.", "Mend the file at its origin; what is doubtful is never imported."),
    Rule("KM852", "id given twice", "Files of one folder give the same id, and nothing says which of them its engine loads: none of them was imported.", "Import folders of one vintage, each on its own."),
    Rule("KM853", "output folder is not empty", "An import is written whole into a folder of its own; nothing was written.", "Give a folder that does not exist yet."),
    Rule("KM854", "group correspondence", "THEIRS=OURS names a group that no imported map has, or one that no contract here declares, or names a group twice.", "Use a group of the report and one of kernelmap list."),
    Rule("KM855", "no import in the folder", "The folder holds no foreign map and no import report.", "Make one with kernelmap import-cke DIR --output FOLDER."),
    Rule("KM860", "foreign tie", "Two eligible foreign maps of a group share the highest priority: by the rules here nothing would be selected.", "Tell the other engine; a tie is decided there by something that the maps do not say."),
    Rule("KM861", "foreign hole", "A foreign group has maps for a phase, and none is eligible on a host.", "Look at the reasons: kernelmap foreign DIR --group GROUP."),
    Rule("KM862", "foreign group of several arithmetics", "Maps of one foreign group name different numerical contracts, formats or ports: to choose another of them may change the numbers.", "Compare the maps; tell the other engine."),
)  # fmt: skip
"""Everything that imports and audits of foreign maps say."""
