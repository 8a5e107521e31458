"""Export, import and copy sessions; an export is a file of JSON lines."""
