"""The parts that all stores share: queries, records, filters, paging, scope, text and encryption."""
