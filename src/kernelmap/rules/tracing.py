"""KM57x: shadow runs, captures, replays and bisections."""

from kernelmap.rules.rule import Rule

RULES = (
    Rule("KM570", "shadow departs", "A shadow departed from production in more calls than the budget allows.", "See the evidence file; capture the call and replay it to look closer."),
    Rule("KM571", "no shadow", "The op has no provider of that name in any of the phases asked for.", "Name a phase that the candidate's map lists, or leave the phase out."),
    Rule("KM572", "cannot write", "A capture or an evidence file cannot be written; nothing was left half-written.", "Give a place that exists and can be written."),
    Rule("KM573", "no capture", "The safetensors file does not hold a captured call.", "Give a file that run --capture wrote."),
    Rule("KM574", "capture does not fit its contract", "Tensors, dims or params of a capture are not what the group's contract declares.", "Capture the call again; the file was damaged or edited."),
    Rule("KM575", "capture of another contract", "The group's contract is gone or says something else than when the call was captured: its outputs prove nothing.", "Capture the call again."),
    Rule("KM576", "cannot replay", "The provider cannot run the captured call on this host.", "See the reason; without --provider or with --all, other providers of the group run."),
    Rule("KM577", "never called", "Nothing called what was to be captured or shadowed, so that nothing was proved.", "Give inputs for the phase, or leave the word out."),
    Rule("KM578", "lock is no plan", "A lock's choices do not fit the circuit's ops.", "Write the lock anew."),
)  # fmt: skip
"""Everything that shadow runs, captures, replays and bisections say."""
