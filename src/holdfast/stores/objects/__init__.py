"""Objects and the packs that hold large ones, and the activity log."""
