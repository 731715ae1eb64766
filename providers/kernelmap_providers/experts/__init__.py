"""Expert blocks.

Schedules (``by_token``, ``bucketed``) hold no arithmetic of a format; legs (``legs``, ``gating``) hold no schedule.
Both meet in memory (``words``): a schedule calls legs by address, so a new mix of formats needs no new machine code.
"""
