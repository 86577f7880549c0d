"""A double of AWS for tests: one HTTP end point that answers as EC2 and its neighbours do (AWS §22).

``double.Double`` is the end point. What moto answers well is passed on to moto; capacity, prices, images, machines and their
faults are played here, because moto sells everything always. ``machines.MachineRoom`` is the stand-in for what runs on the
machines: it reads their user data as a bootstrap would and registers Nodes. ``messages`` writes to the interruption queue.
"""
