"""The verbs of the command line, one module a verb family; imported when the verb is used."""
