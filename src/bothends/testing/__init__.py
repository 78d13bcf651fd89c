"""The users' test kit: ``context`` for one handler, ``Harness`` for flows, ``Scenario`` for stories in rounds."""
