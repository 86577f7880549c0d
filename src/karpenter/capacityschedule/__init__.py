"""Capacity schedules (feature gate CapacitySchedule): NodePools that sleep and wake by a calendar.

``sleep_decision`` says which NodePools sleep at a moment, and ``schedule_controller`` carries that out. Calendars are in
``model.capacity_calendar``, draining of nodes in ``disruption.decide.sleep``.
"""
