"""What can be bought on EC2: types as a node class sees them, their prices, and what cannot be had now (AWS §§7-8).

``market`` puts it together and keeps it; everything it puts together is functions of raw facts and a class (``hardware``,
``terms``, ``capacity``, ``requirements``, ``compatibility``, ``offerings``) or a memory of its own (``prices``, ``unavailable``,
``reserved``, ``learned``). Nothing here decides what is bought.
"""
