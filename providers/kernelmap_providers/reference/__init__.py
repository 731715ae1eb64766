"""The oracles: what each contract computes, literally, slowly, in plain numpy. They import no kernel.

An oracle is called as ``oracle(spec, **inputs_weights_and_state)`` and returns the outputs by port name. It raises
`refusal.RefusedRow` where a provider returns a nonzero status.
"""
