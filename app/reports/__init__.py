"""One module an export format; each is a pure function of what the reader returns."""
