"""The runs: records, schema, writer, reader. Imports neither torch nor anything that draws."""
