"""Messages to users: problems with arguments, advice, formatted values, the log."""
