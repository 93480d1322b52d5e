"""What tunekit tells its users: problems with arguments, advice, formatted values, the log."""
