"""Expert blocks.

Schedules (``routed``, ``bucketed``, ``shared``) hold no arithmetic of a format; legs (``activations``, ``dots``,
``segments``) hold no schedule, and are chosen by format when a schedule is compiled.
"""
