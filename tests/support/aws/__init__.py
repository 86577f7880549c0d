"""A double of AWS for tests: one HTTP endpoint that answers as EC2 and the related services do (AWS §22).

``double.Double`` is the endpoint. It passes to moto what moto answers well; capacity, prices, images, instances and
faults are implemented here, because moto has unlimited capacity. ``node_simulator.NodeSimulator`` simulates what runs on the
instances: it reads their user data as a bootstrap would and registers Nodes. ``interruption_queue`` sends messages.
"""
