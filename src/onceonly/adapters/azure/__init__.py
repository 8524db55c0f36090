"""Azure Table, Blob and Queue Storage and Azure Service Bus, through the Azure SDK."""
