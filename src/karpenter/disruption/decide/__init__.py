"""Which nodes may go, and why the others stay: functions of the same snapshot provisioning works on."""
