"""KM58x and KM59x: benchmarks, promotion and demotion."""

from kernelmap.rules.rule import Rule

_AGAIN = "Run kernelmap bench on the group again, and give its record."

RULES = (
    Rule("KM580", "nothing to time", "The target is neither group nor circuit nor model file, or no provider of it is eligible on this host.", "See the near names and the reasons of each provider."),
    Rule("KM581", "host that this machine is not", "A bench for a host profile runs with the profile's ISA features, and this machine lacks some of them.", "Measure on such a machine."),
    Rule("KM582", "provider not timed", "A provider could not be bound, refused its inputs, or gave other outputs than the provider it was compared with.", "Certify it; a time of wrong outputs says nothing."),
    Rule("KM583", "no call can be made", "Dims do not fit the contract, or an op needs what a bench cannot make up (state).", "Give fitting --shape sizes; ops with state are timed by kernelmap run."),
    Rule("KM584", "priority against measurement", "A provider that ranks higher takes longer, beyond noise, than one that ranks lower at some shape.", "Change a priority, guard a variant, or leave it where other shapes matter more."),
    Rule("KM585", "too large to time", "The weights of an op, as stored and as every provider prepares them, do not fit into memory.", "Fewer --copies, a smaller --shape, or --exclude some providers."),
    Rule("KM586", "no room for temporary weights", "A bench writes random weights to a temporary file, and could not.", "Set TMPDIR to a folder with room."),
    Rule("KM590", "status does not allow it", "Only a candidate is promoted, and a demotion goes down: production, candidate, diagnostic, deprecated.", "See the statuses of the group with kernelmap list."),
    Rule("KM591", "certificate does not hold", "A promotion needs a passing certificate for the contract, map, source and toolchain at hand, on the ISA path that was timed.", "Run kernelmap certify on the provider."),
    Rule("KM592", "benchmark lacking", "No record times the provider against what is selected now, in every phase that it lists.", _AGAIN),
    Rule("KM593", "benchmark does not hold", "Something that the times rest on (contract, map, source, toolchain, what is selected) is not what it was, or a kill switch was set while it was measured.", _AGAIN),
    Rule("KM594", "slower than what is selected", "The candidate takes longer than the incumbent, beyond noise, at a shape of the record.", "Make it faster there, keep it from that phase, or leave it a candidate."),
    Rule("KM595", "benchmark proves nothing", "Too few rounds, or so much noise that a loss of a tenth could hide in it.", "Measure with more --rounds on a quiet machine."),
    Rule("KM597", "not confirmed", "A change of status is shown and then confirmed; there was no terminal to ask, or the answer was no.", "Give --yes once the shown diff is right."),
    Rule("KM598", "benchmark cannot be kept", "The folder for benchmark records beside the maps could not be made; nothing was changed.", "Make the folder of maps writable."),
    Rule("KM599", "map changed meanwhile", "Between reading the map and writing it someone else wrote it; their change was kept, and nothing was written.", "Give the command again, and look at the new diff."),
)  # fmt: skip
"""Everything that bench, promote and demote say."""
