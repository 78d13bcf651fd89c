"""The programs that users write in their first week. They are not collected as they stand: each one is run as its user
would run it, in a folder and a process of its own, by ``test_programs.py`` and its neighbours."""

collect_ignore = ["test_inventory.py"]
