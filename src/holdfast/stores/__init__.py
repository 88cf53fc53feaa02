"""The stores: every table is read and written by one of them."""
