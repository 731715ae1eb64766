"""KM8xx: locks, diffs and audits."""

from kernelmap.rules.rule import Rule

_RELOCK = "If it is meant, look at kernelmap diff and write the lock anew; else undo it."

RULES = (
    Rule("KM801", "contract changed", "The arithmetic, ports or formats of a group differ from those locked: its providers may compute other numbers.", _RELOCK),
    Rule("KM802", "reference changed", "The source of a contract's reference, or of something that it imports, differs from that locked.", "Certify the group's providers anew, then write the lock anew."),
    Rule("KM803", "map changed", "A map of a group that a circuit asks for says something else than it did, selected or not.", _RELOCK),
    Rule("KM804", "source changed", "The source of a provider, or of a module that it imports, differs from that locked.", "Certify the provider anew, then write the lock anew."),
    Rule("KM805", "provider changed within the group", "Another provider of the same group is selected than before: the same numbers, another kernel.", _RELOCK),
    Rule("KM806", "became unresolvable", "An op that had a provider has none, or a circuit does not resolve at all any more.", "See the reasons of each provider; kernelmap explain names the smallest change."),
    Rule("KM807", "ceased to be unresolvable", "An op has a provider that had none.", "Write the lock anew."),
    Rule("KM808", "variants changed", "The same provider is selected, and other variants of it may run: the host or a kill switch differs.", _RELOCK),
    Rule("KM809", "reasons changed", "A provider is rejected as before, and for other reasons.", _RELOCK),
    Rule("KM810", "provider added", "The group has a map that it had not.", _RELOCK),
    Rule("KM811", "provider removed", "The group has lost a map.", _RELOCK),
    Rule("KM812", "circuit changed", "The circuit's ops, edges, routes or options differ from those locked.", _RELOCK),
    Rule("KM813", "circuit added", "The lock was made of all circuits, and there is one that it does not hold.", "Write the lock anew."),
    Rule("KM814", "circuit removed", "A locked circuit does not exist, or cannot be read.", "Give its folder with --circuits, or write the lock anew."),
    Rule("KM815", "storage changed", "The tensors, formats or metadata of the model or reference storage differ from those locked.", _RELOCK),
    Rule("KM816", "host changed", "A feature or device that checks ask for is there now and was not, or the other way round.", "Lock for the profile of the machines that you mean (--host), not for the one at hand."),
    Rule("KM817", "host added or removed", "The two sides are not about the same hosts.", "Compare locks of the same hosts, or one host with one host."),
    Rule("KM818", "policy changed", "Routes, exclusions, pins, evidence, kill switches or options differ from those locked.", "Undo it (kill switches are environment variables), or write the lock anew."),
    Rule("KM819", "op changed", "An op was added, is gone, or asks for another group than before.", _RELOCK),
    Rule("KM820", "contract added or removed", "A group exists on one side only, or is asked for on one side only.", _RELOCK),
    Rule("KM830", "not in the lock", "The lock says nothing of the circuit or host that it is to hold for.", "Lock that circuit on that host too."),
    Rule("KM831", "named twice", "Two circuits, or two hosts, of one lock have the same name.", "Name each once."),
    Rule("KM832", "cannot write", "The file cannot be written; nothing was changed.", "Give a folder that exists and is writable."),
    Rule("KM833", "nothing to compare", "A side of a diff is a lock file, a folder of maps, git:REV or host:NAME, and this is none.", "Check the spelling; a revision needs a repository around the working directory."),
    Rule("KM841", "no provider", "An op has no eligible provider in this phase on this host: the circuit does not run there.", "Write one, or make one eligible: kernelmap explain names the smallest change."),
    Rule("KM842", "one provider only", "Nothing else of the group is eligible: excluding this provider leaves a hole.", "Fine where it is meant; a plain fallback of lower priority makes it safe to exclude."),
    Rule("KM843", "dominated map", "The map is eligible in some audited place and outranked in all of them: it never runs.", "Raise its priority if it is better, or remove it."),
    Rule("KM844", "dead map", "No audited circuit asks for the map's group, or no audited host and phase can run it.", "Fine for a map that waits for a circuit or host; else remove it."),
    Rule("KM845", "candidate", "What a candidate lacks to be selected, and the smallest change that would select it.", "Prove it and promote it, or route it."),
    Rule("KM846", "claim without evidence", "A published figure stands in the map, and nothing measured here stands beside it.", "Measure it, and write what came of it under reproduced."),
    Rule("KM847", "variant that no shape reaches", "Within the audited circuits' dims, token counts and hosts, no call ever runs this variant.", "Mend its guards or its place in the list, or remove it."),
    Rule("KM848", "production without valid evidence", "A production provider has no certificate, or one for another contract, map or source.", "Certify it on this kind of host."),
)  # fmt: skip
"""Everything that locks, diffs and audits say."""
