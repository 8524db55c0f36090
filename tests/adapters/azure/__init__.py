"""The adapters for Azure Table and Azure Blob."""
