"""Capturing and restoring directories: trees and stores combined."""
