"""Pure DataFrame -> DataFrame functions, native SQL only, with a schema select at entry and exit.

They see no source, sink or job, so that the same function serves every profile and every mode.
"""
