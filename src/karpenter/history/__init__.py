"""What happened to a cluster and what it cost, kept by the controller in a SQLite file of bounded size and age.

``history_records`` are the data, ``history_store`` writes and reads them, ``history_recorder`` collects them beside the
controllers. No decision reads the history, and none waits for it.
"""
