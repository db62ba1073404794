"""The dashboard's pages: one file a page."""
