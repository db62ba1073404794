"""What people look at: dashboard, command line, reports."""
